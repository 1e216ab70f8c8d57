package amqptest

import (
	"regexp"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
)

// Permission is a kind of right to queues and exchanges.
type Permission string

// The three permissions of RabbitMQ.
const (
	PermissionConfigure Permission = "configure" // declare and delete
	PermissionWrite     Permission = "write"     // publish to, bind a queue
	PermissionRead      Permission = "read"      // consume, purge, bind from an exchange
)

// user is a User whose patterns are compiled.
type user struct {
	User

	allowed map[Permission]func(name string) bool
}

func newUser(u User) *user {
	return &user{u, map[Permission]func(string) bool{
		PermissionConfigure: pattern(u.Configure), PermissionWrite: pattern(u.Write), PermissionRead: pattern(u.Read),
	}}
}

// pattern reads a permission. Every method asks for one or two, and that to
// everything is the usual one.
func pattern(p string) func(name string) bool {
	switch p {
	case "":
		return func(string) bool { return false }
	case ".*":
		return func(string) bool { return true }
	}
	return regexp.MustCompile(p).MatchString
}

// may tells whether a user has a right to a name.
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

// permit refuses what the user of a connection may not do, in RabbitMQ's words.
func (c *conn) permit(p Permission, kind, name string) *rabbit.Error {
	if c.srv.may(c.user, p, name) {
		return nil
	}
	verb := string(p) + " "
	if !c.srv.broker.Version().AtLeast(3, 11, 0) {
		verb = ""
	}
	return rabbit.Refusal(amqp.AccessRefused, "%saccess to %s '%s' in vhost '%s' refused for user '%s'", verb, kind, name, c.vhostName, c.user.Name)
}

// permitAny is what looking takes since 4.3.
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

// login checks the answer to connection.start.
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
		d := &decoder{}
		e := &encoder{}
		e.longstr(response)
		d.b = e.b
		t := d.table()
		name, _ = t["LOGIN"].(string)
		password, _ = t["PASSWORD"].(string)
	}
	u := s.users[name]
	if u == nil || u.Password != password || s.faults.refuseLogins > 0 {
		return nil
	}
	return u
}

// enter tells whether a user may use a virtual host.
func (u *user) enter(vhost string) bool {
	return u.VHosts == nil || slices.Contains(u.VHosts, vhost)
}
