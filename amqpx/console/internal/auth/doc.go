// Package auth identifies who makes a request, by a session that began with a login form or
// by a token. It knows users, and not what a request may do.
//
// auth.go has logins and logouts and how often one may try, session.go what sessions and tokens
// consist of, and file.go the file of users, which lock_unix.go locks
// (lock_other.go does not).
package auth
