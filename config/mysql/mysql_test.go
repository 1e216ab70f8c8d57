package mysql

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestURL(t *testing.T) {
	for _, c := range []struct{ url, dsn string }{
		{"mysql://u:p%40s%2Fs%3F@db:3307/shop", "u:p@s/s?@tcp(db:3307)/shop?parseTime=true"},
		{"mysql://u@db/shop", "u@tcp(db:3306)/shop?parseTime=true"},
		{"mariadb://u:p@[::1]/shop", "u:p@tcp([::1]:3306)/shop?parseTime=true"},
		{"mysql://u:p@db/shop?timeout=5s&multiStatements=true&parseTime=false", "u:p@tcp(db:3306)/shop?parseTime=true&timeout=5s"},
		{"mysql://u:p@db/shop?tls=skip-verify", "u:p@tcp(db:3306)/shop?parseTime=true&tls=skip-verify"},
	} {
		d, err := parse(c.url)
		if err != nil {
			t.Errorf("parse(%s): got %v, want no error", c.url, err)
			continue
		}
		if got := d.FormatDSN(); got != c.dsn {
			t.Errorf("parse(%s): got the DSN %s, want %s", c.url, got, c.dsn)
		}
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
		d, err := parse("mysql://" + user + "@db/shop")
		if err != nil || d.Passwd != password || d.User != "user" || d.DBName != "shop" {
			t.Fatalf(`password %q: got %+v, %v, want Passwd = %[1]q, User = "user", DBName = "shop" and no error`, password, d, err)
		}
	})
}
