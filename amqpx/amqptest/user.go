package amqptest

import (
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

// Permission is one of the three permissions that a RabbitMQ user can have for names of queues and exchanges.
type Permission string

// RabbitMQ's permissions, and the operations that need them.
const (
	PermissionConfigure Permission = "configure" // declare and delete
	PermissionWrite     Permission = "write"     // publish to an exchange, bind a queue
	PermissionRead      Permission = "read"      // consume, purge, bind from an exchange
)

// user is a User with compiled permission patterns.
type user struct {
	User

	allowed map[Permission]func(name string) bool
}

// pattern compiles a permission. It avoids a regular expression for permissions that allow everything, because every
// method checks one or two permissions.
func pattern(p string) func(name string) bool {
	switch p {
	case "":
		return func(string) bool { return false }
	case ".*":
		return func(string) bool { return true }
	}
	return regexp.MustCompile(p).MatchString
}

// may reports whether a user has a permission for a name.
func (s *Server) may(u *user, p Permission, name string) bool {
	if name == "" {
		name = "amq.default"
	}
	for _, d := range s.faults.denied {
		if d.permission == p && (d.user == "" || d.user == u.Name) && d.pattern.MatchString(name) {
			return false
		}
	}
	return u.allowed[p](name)
}

// permit returns RabbitMQ's error if the connection's user lacks a permission.
func (c *conn) permit(p Permission, kind, name string) *rabbit.Error {
	if c.srv.may(c.user, p, name) {
		return nil
	}
	verb := string(p) + " "
	if !c.srv.broker.Version().AtLeast(3, 11, 0) {
		verb = ""
	}
	if name == "" {
		name = "amq.default"
	}
	return rabbit.Refusal(amqp.AccessRefused, "%saccess to %s '%s' in vhost '%s' refused for user '%s'", verb, kind, name, c.vhostName, c.user.Name)
}

// permitAny returns RabbitMQ's error if the user has none of the three permissions. A passive declaration requires at
// least one of them since 4.3.
func (c *conn) permitAny(kind, name string) *rabbit.Error {
	if !c.srv.broker.Version().AtLeast(4, 3, 0) {
		return nil
	}
	for _, p := range []Permission{PermissionConfigure, PermissionWrite, PermissionRead} {
		if c.srv.may(c.user, p, name) {
			return nil
		}
	}
	return rabbit.Refusal(amqp.AccessRefused, "access to %s '%s' in vhost '%s' refused for user '%s'", kind, name, c.vhostName, c.user.Name)
}

// login returns the user for an answer to connection.start, or nil if the login is rejected.
func (s *Server) login(mechanism, response string) *user {
	var name, password string
	switch mechanism {
	case "PLAIN":
		parts := strings.Split(response, "\x00")
		if len(parts) != 3 {
			return nil
		}
		name, password = parts[1], parts[2]
	case "AMQPLAIN":
		var e codec.Encoder
		e.LongStr(response)
		t := codec.NewDecoder(e.Bytes()).Table()
		name, _ = t["LOGIN"].(string)
		password, _ = t["PASSWORD"].(string)
	}
	u := s.users[name]
	if u == nil || u.Password != password || s.faults.refuseLogins > 0 {
		return nil
	}
	return u
}
