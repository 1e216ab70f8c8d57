package console_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	_ "modernc.org/sqlite" // the application's database

	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// The console as a part of an application, behind the application's own login.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection has a memory of its own
	if err := schedule.Migrate(ctx, db); err != nil {
		panic(err)
	}
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		panic(err)
	}
	c, err := console.New(console.Config{
		Store: tasks, DB: db, Prefix: "/admin/delays",
		Identify: func(r *http.Request) (console.Identity, error) {
			user, _, ok := r.BasicAuth() // an application looks into its session
			if !ok {
				return console.Identity{}, console.ErrNobody
			}
			return console.Identity{Name: user, Role: console.RoleOperator}, nil
		},
	})
	if err != nil {
		panic(err)
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	mux := http.NewServeMux()
	mux.Handle("/admin/delays/", c)

	r := httptest.NewRequest(http.MethodGet, "/admin/delays/tasks", http.NoBody)
	r.SetBasicAuth("anna", "")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}
