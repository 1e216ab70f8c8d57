package postgres

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestURL(t *testing.T) {
	p, err := parse("postgresql://u:p%40ss@db:5433/shop?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	if p.Host != "db" || p.Port != 5433 || p.Password != "p@ss" || p.Database != "shop" {
		t.Errorf(`the parsed URL has the password %q for %s:%d/%s, want "p@ss" for db:5433/shop`, p.Password, p.Host, p.Port, p.Database)
	}
}

// A percent-encoded password is decoded completely.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"", "p@ss/", "?#", ")(", "%", "12/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, password string) {
		if !utf8.ValidString(password) || strings.ContainsRune(password, 0) {
			return
		}
		user := url.UserPassword("user", password).String()
		d, err := parse("postgres://" + user + "@db/shop?sslmode=disable")
		if err != nil || d.Password != password || d.Host != "db" {
			t.Fatalf(`password %q: got %+v, %v, want Password = %[1]q, Host = "db" and no error`, password, d, err)
		}
	})
}
