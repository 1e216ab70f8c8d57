// Package console shows and steers what rabbitdelay delays: pages for people and an
// HTTP API for programs, as an http.Handler. "rabbitdelay serve" is a process around
// it; an application mounts it behind its own login:
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
package console
