// Package auth says who makes a request: by a session that began with a login form,
// or by a token, both of a file of users. It does not know what a request may do.
package auth
