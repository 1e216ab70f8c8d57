// Package browser has the tests of the console in a real browser: Debian's Chromium,
// driven through its own protocol, on a rabbitdelay serve with a broker and a database.
package browser
