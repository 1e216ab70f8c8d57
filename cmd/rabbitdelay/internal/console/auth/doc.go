// Package auth identifies the caller of a request: by a session that started with the login form, by a token, or by the
// headers of a reverse proxy. It authenticates callers and does not authorize requests.
//
//	auth.go        the login, the logout and the limit on login attempts
//	session.go     the format of sessions and tokens
//	proxy.go       callers that a reverse proxy has authenticated
//	file.go        the users file
//	lock_unix.go   locking the users file
//	lock_other.go  the same for systems on which files cannot be locked
package auth
