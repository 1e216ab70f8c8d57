// Package auth identifies the caller of a request, by a session that started with the login form or by a token. It
// knows users, but not what a request may do.
//
// auth.go has the login, the logout and the limit on login attempts. session.go has the format of sessions and
// tokens. file.go has the file of users. lock_unix.go locks this file, and lock_other.go is for systems on which it
// cannot be locked.
package auth
