// Package enum gives enumerations a form in text, and so in JSON: the names that their String
// methods return.
package enum
