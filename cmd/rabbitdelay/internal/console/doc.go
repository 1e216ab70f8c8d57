// Package console shows delayed messages and tasks and lets operators change them. It is an http.Handler that serves
// web pages and an HTTP API. The command "rabbitdelay serve" runs it as a separate process. An application can also
// mount it behind its own login:
//
//	c, err := console.New(console.Config{
//		Store: tasks, DB: db, Prefix: "/admin/delays",
//		Identify: func(r *http.Request) (console.Identity, error) {
//			u, err := session(r)
//			return console.Identity{Name: u.Name, Role: console.RoleViewer}, err
//		},
//	})
//	mux.Handle("/admin/delays/", c)
//	defer c.Close(ctx)
//
// console.go has the configuration, and the audit for changes made outside of a console. guard.go is the only place
// that decides what a caller may do, before anything is read, and it limits the size of requests. Below these files,
// internal/service works with databases and brokers, internal/page and internal/api present them as web pages and as
// an API, and internal/auth manages users.
package console
