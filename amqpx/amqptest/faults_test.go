package amqptest_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// bubble runs f in a separate bubble, with a server and a plain connection.
func bubble(t *testing.T, opts amqptest.Options, f func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(opts)
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		f(t, srv, conn)
	})
}

func channel(t *testing.T, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// confirming returns a channel in confirm mode, and a Go channel with the messages that the broker returns.
func confirming(t *testing.T, conn *amqp.Connection) (*amqp.Channel, chan amqp.Return) {
	t.Helper()
	ch := channel(t, conn)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	returned := ch.NotifyReturn(make(chan amqp.Return, 100))
	return ch, returned
}

func queue(t *testing.T, ch *amqp.Channel, name string, args amqp.Table) {
	t.Helper()
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, ch *amqp.Channel, exchange, key string, p amqp.Publishing) *amqp.DeferredConfirmation {
	t.Helper()
	dc, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil {
		t.Fatal(err)
	}
	return dc
}

func TestConfirmReturnNackSilence(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		ch, returned := confirming(t, conn)
		queue(t, ch, "q", nil)
		if !publish(t, ch, "", "q", amqp.Publishing{Body: []byte("1")}).Wait() || len(returned) != 0 {
			t.Errorf("a message for an existing queue was not confirmed, or was returned (%d returns), want a confirm and no return", len(returned))
		}
		if !publish(t, ch, "", "none", amqp.Publishing{}).Wait() || len(returned) != 1 {
			t.Errorf("after a message for a missing queue: got %d returns before its confirm, want 1", len(returned))
		}
		undo := srv.Nack("q")
		if publish(t, ch, "", "q", amqp.Publishing{}).Wait() {
			t.Error("a publish after Nack was confirmed, want a nack")
		}
		undo()
		undo = srv.Return("q")
		if !publish(t, ch, "", "q", amqp.Publishing{}).Wait() || len(returned) != 2 {
			t.Errorf("after Return: got %d returns before the confirm, want 2", len(returned))
		}
		undo()
		undo = srv.Silence("q")
		dc := publish(t, ch, "", "q", amqp.Publishing{Body: []byte("2")})
		<-time.After(time.Hour)
		synctest.Wait()
		if dc.Acked() {
			t.Error("a publish after Silence was confirmed, want no answer")
		}
		undo()
		if !dc.Wait() {
			t.Error("after Silence was undone, the publish was nacked, want a confirm")
		}
		q, _ := srv.Queue("q")
		if q.Ready != 2 || string(q.Messages[1].Body) != "2" || srv.Publishes("") != 5 {
			t.Errorf("%d messages are in the queue, and %d were published, want 2 and 5", q.Ready, srv.Publishes(""))
		}
	})
}

func TestRefuseAndDeny(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		ch := channel(t, conn)
		queue(t, ch, "q", nil)
		undo := srv.Deny("", amqptest.PermissionConfigure, "^q$")
		_, err := ch.QueueDeclare("q", true, false, false, false, nil)
		if want := "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'guest'"; !says(err, 403, want) {
			t.Errorf("QueueDeclare without the configure permission: got %v, want reply 403 %q", err, want)
		}
		undo()
		undo = srv.Refuse("q", amqp.NotFound, "home node of it is down")
		_, err = channel(t, conn).QueueDeclarePassive("q", true, false, false, false, nil)
		if !says(err, 404, "NOT_FOUND - home node of it is down") {
			t.Errorf(`QueueDeclarePassive after Refuse with 404: got %v, want reply 404 "NOT_FOUND - home node of it is down"`, err)
		}
		undo()
		if _, err := channel(t, conn).QueueDeclarePassive("q", true, false, false, false, nil); err != nil {
			t.Errorf("QueueDeclarePassive after Refuse was undone: got %v, want no error", err)
		}
		srv.Refuse("q", amqp.InternalError, "it broke")
		_, err = channel(t, conn).QueueDeclarePassive("q", true, false, false, false, nil)
		if !says(err, 541, "INTERNAL_ERROR - it broke") || !conn.IsClosed() {
			t.Errorf(`QueueDeclarePassive after Refuse with 541: got %v, want reply 541 "INTERNAL_ERROR - it broke" and a closed connection`, err)
		}
	})
}

func says(err error, code int, text string) bool {
	var ae *amqp.Error
	return errors.As(err, &ae) && ae.Code == code && strings.Contains(ae.Reason, text)
}

func TestBlock(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		quiet, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer quiet.Close()
		ch, _ := confirming(t, conn)
		queue(t, ch, "q", nil)
		blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
		srv.Block("memory")
		dc := publish(t, ch, "", "q", amqp.Publishing{})
		if b := <-blocked; !b.Active || b.Reason != "memory" {
			t.Errorf(`the notification after Block: got %+v, want Active = true and Reason = "memory"`, b)
		}
		later := publish(t, ch, "", "q", amqp.Publishing{})
		if _, err := channel(t, quiet).QueueDeclarePassive("q", true, false, false, false, nil); err != nil {
			t.Errorf("QueueDeclarePassive on a connection that does not publish: got %v, want no error", err)
		}
		<-time.After(time.Hour)
		if !dc.Wait() || later.Acked() {
			t.Errorf("while publishers are blocked: the second publish was confirmed: %t, want only the first one confirmed", later.Acked())
		}
		srv.Unblock()
		if b := <-blocked; b.Active || !later.Wait() {
			t.Errorf("the notification after Unblock: got %+v, want Active = false and the second publish confirmed", b)
		}
	})
}

func TestCutAndLoseAndDelay(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		srv.CutAt("basic.ack", 2)
		ch, _ := confirming(t, conn)
		queue(t, ch, "q", nil)
		if !publish(t, ch, "", "q", amqp.Publishing{}).Wait() || publish(t, ch, "", "q", amqp.Publishing{}).Wait() {
			t.Error("the first confirm was lost, or the second one was received, want only the second one lost")
		}
		if q, _ := srv.Queue("q"); q.Ready != 2 || !conn.IsClosed() {
			t.Errorf("after the second confirm was lost: got %d ready messages and a closed connection: %t, want 2 and true", q.Ready, conn.IsClosed())
		}
		again, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		defer srv.Delay("queue.declare", "slow", time.Minute)()
		slow, fast := channel(t, again), channel(t, again)
		began := time.Now()
		queue(t, fast, "quick", nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("a method on another channel took %v, want 0s", took)
		}
		queue(t, slow, "slow", nil)
		queue(t, slow, "after", nil)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("the delayed method took %v, want 1m", took)
		}
		srv.Lose("queue.declare-ok", "lost")
		ended := make(chan error)
		go func() {
			_, err := fast.QueueDeclare("lost", true, false, false, false, nil)
			ended <- err
		}()
		synctest.Wait()
		if _, ok := srv.Queue("lost"); !ok {
			t.Error("the queue lost does not exist, want it declared, because only the answer was lost")
		}
		srv.CutConnections()
		if <-ended == nil {
			t.Error("QueueDeclare without an answer before the connection was cut: got no error, want one")
		}
	})
}

func TestLogins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		undo := srv.RefuseLogins()
		_, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		if !says(err, 403, "") {
			t.Errorf("Open while logins are refused: got %v, want reply code 403", err)
		}
		undo()
		undo = srv.RefuseConnections()
		if conn, err := srv.Connect(); err == nil {
			t.Error("Connect after RefuseConnections: got no error, want one")
			conn.Close()
		}
		undo()
		open(t, srv).Close(t.Context())
	})
}

func TestListen(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	url, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, _ := confirming(t, conn)
	queue(t, ch, "q", nil)
	body := make([]byte, 3<<20)
	if !publish(t, ch, "", "q", amqp.Publishing{Body: body}).Wait() {
		t.Fatal("the message was nacked, want a confirm")
	}
	d, ok, err := ch.Get("q", true)
	if err != nil || !ok || len(d.Body) != len(body) {
		t.Errorf("basic.get: got a message: %t, with %d bytes and the error %v, want a message with %d bytes and no error", ok, len(d.Body), err, len(body))
	}
}

func TestRefuseMethod(t *testing.T) {
	bubble(t, amqptest.Options{}, func(t *testing.T, srv *amqptest.Server, conn *amqp.Connection) {
		ch := channel(t, conn)
		queue(t, ch, "q", nil)
		undo := srv.RefuseMethod("basic.consume", "q", amqp.InternalError, "it broke")
		if _, err := ch.QueueDeclarePassive("q", true, false, false, false, nil); err != nil {
			t.Errorf("QueueDeclarePassive: got %v, want no error", err)
		}
		if _, err := ch.Consume("q", "", false, false, false, false, nil); !says(err, 541, "INTERNAL_ERROR - it broke") {
			t.Errorf(`Consume after RefuseMethod: got %v, want reply 541 "INTERNAL_ERROR - it broke"`, err)
		}
		if !conn.IsClosed() {
			t.Error("the connection is open after an error 541, want it closed")
		}
		undo()
		again, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := channel(t, again).Consume("q", "", false, false, false, false, nil); err != nil {
			t.Errorf("Consume on a new connection: got %v, want no error", err)
		}
		_ = again.Close()
	})
}
