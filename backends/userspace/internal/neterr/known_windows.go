package neterr

func known() []number { return append(onWindows(), byName()...) }
