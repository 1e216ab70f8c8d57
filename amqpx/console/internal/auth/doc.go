// Package auth identifies who makes a request, by a session that began with a login form or
// by a token. It knows users, and not what a request may do.
//
// auth.go has logins and logouts, session.go what sessions and tokens consist of, file.go the
// file of users, which lock_unix.go locks, and limit.go how often one may try.
package auth
