// Package browser tests the debug page of package inspect in a browser: Chromium without a
// window.
package browser
