// Package console shows and changes what rabbitdelay delays: pages for people and an HTTP
// API for programs, as an http.Handler. "rabbitdelay serve" is a process around it; an
// application mounts it behind its own login:
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
// console.go has what a Console works on, and the audit for others; guard.go is the only place
// that decides who may do what, before anything is read, and bounds what is read. Below it,
// internal/service knows databases and brokers, internal/page and internal/api know how
// people and programs see that, and internal/auth knows users.
package console
