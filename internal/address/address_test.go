package address

import "testing"

func TestWhole(t *testing.T) {
	for url, want := range map[string]bool{
		"amqp://host": true, "amqp://user:pass@host:5672/vhost": true, "amqp://user:p@ss@host/": true, "amqp://user:12%2334@host/%2F": true,
		"sqlite:a/b.db": true, "": true, "amqps://h/v?cacertfile=/x": true,
		"amqp://user:12#34@host": false, "amqp://user:12/34@host": false, "amqp://user:12?34@host": false, "amqp://host/#x": false,
	} {
		if got := Whole(url); got != want {
			t.Errorf("Whole(%q) = %v", url, got)
		}
	}
}

func TestHasHost(t *testing.T) {
	for url, want := range map[string]bool{
		"amqp://host": true, "amqp://u:p@[::1]:5672/v": true, "amqp://u:p@host/": true,
		"amqp://u:p@:5672/": false, "amqp://u:p@/": false, "amqp:///v": false, "amqp:u:p@127.0.0.1:1": false, "amqp:1": false, "": false, "amqp://%": false,
	} {
		if got := HasHost(url); got != want {
			t.Errorf("HasHost(%q) = %v", url, got)
		}
	}
}
