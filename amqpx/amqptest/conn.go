package amqptest

import (
	"bufio"
	"io"
	"net"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest/internal/rabbit"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
)

// conn is a client's connection. Everything except reading from it happens with the server locked.
type conn struct {
	srv    *Server
	net    net.Conn
	number int

	name      string // connection_name of the client's properties
	able      amqp.Table
	user      *user
	vhostName string
	vhost     *rabbit.VHost
	frameMax  uint32
	channels  map[uint16]*channel
	opened    int // number of channels opened so far
	in        inbox

	open      bool
	closing   bool // connection.close was sent
	ended     bool
	published bool // the client has published; only then can the connection be blocked
	blocked   bool

	beat     *time.Timer
	interval time.Duration // heartbeat interval
	sent     time.Time
	received time.Time
}

func newConn(s *Server, n net.Conn, number int) *conn {
	return &conn{srv: s, net: n, number: number, channels: map[uint16]*channel{}, received: time.Now()}
}

// greeting is the protocol header that opens a connection. The server also answers with it if a client begins with
// anything else.
const greeting = "AMQP\x00\x00\x09\x01"

// serve reads frames until the connection ends.
func (c *conn) serve() {
	defer c.srv.do(c.end)
	defer func() { _ = c.net.Close() }()
	r := bufio.NewReader(c.net)
	var hello [len(greeting)]byte
	if _, err := io.ReadFull(r, hello[:]); err != nil {
		return
	}
	if string(hello[:]) != greeting {
		_, _ = c.net.Write([]byte(greeting))
		return
	}
	c.srv.do(c.start)
	for {
		f, err := codec.ReadFrame(r, c.frameMax)
		done := true // stays true if the server has been closed, because do then does not call its function
		c.srv.do(func() { done = c.take(f, err) })
		if done {
			return
		}
	}
}

// take handles a frame or a read error, and reports whether the connection has ended.
func (c *conn) take(f codec.Frame, err error) (done bool) {
	for c.blocked && !c.ended && !c.srv.closed {
		c.srv.unblocked.Wait() // a broker does not read from a connection that it blocks
		c.srv.advance()
	}
	switch {
	case c.ended || c.srv.closed:
		return true
	case err == codec.ErrFrame: //nolint:errorlint // codec returns this error unwrapped
		c.fail(rabbit.Refusal(amqp.FrameError, "cannot decode frame"), 0)
		return true
	case err != nil:
		return true
	}
	c.received = time.Now()
	switch {
	case f.Kind == codec.FrameHeartbeat:
	case f.Channel == 0:
		c.in.put(c, f, c.onMethod)
	default:
		c.onChannel(f)
	}
	return c.ended
}

func (c *conn) onChannel(f codec.Frame) {
	ch := c.channels[f.Channel]
	if ch == nil {
		if c.closing || !c.open || f.Kind == codec.FrameMethod && methodIn(f.Payload) == channelCloseOk {
			return // both sides may close a channel at the same time
		}
		if f.Kind != codec.FrameMethod || methodIn(f.Payload) != channelOpen {
			c.fail(rabbit.Refusal(amqp.ChannelError, "expected 'channel.open'"), methodIn(f.Payload))
			return
		}
		if int(f.Channel) > c.srv.opts.ChannelMax {
			c.fail(rabbit.Refusal(amqp.NotAllowed, "number of channels opened (%d) has reached the negotiated channel_max (%d)", len(c.channels), c.srv.opts.ChannelMax), channelOpen)
			return
		}
		c.opened++
		ch = &channel{conn: c, id: f.Channel}
		ch.deliveries = c.srv.broker.NewChannel(c, ch)
		c.channels[f.Channel] = ch
	}
	ch.in.put(c, f, ch.onFrame)
}

func (c *conn) start() {
	var e codec.Encoder
	e.Octet(0)
	e.Octet(9)
	e.Table(amqp.Table{
		"product": "RabbitMQ", "version": c.srv.opts.Version, "platform": "amqptest", "cluster_name": "rabbit@amqptest",
		"copyright": "", "information": "a model of RabbitMQ in memory",
		"capabilities": amqp.Table{
			"publisher_confirms": true, "exchange_exchange_bindings": true, "basic.nack": true,
			"consumer_cancel_notify": true, "connection.blocked": true, "consumer_priorities": true,
			"authentication_failure_close": true, "per_consumer_qos": true, "direct_reply_to": true,
		},
	})
	e.LongStr("PLAIN AMQPLAIN")
	e.LongStr("en_US")
	c.send(0, connectionStart, "", e.Bytes())
}

// onMethod handles a method of the connection itself.
func (c *conn) onMethod(f codec.Frame) {
	m, d := readMethod(f.Payload)
	c.srv.calls[m]++
	var err *rabbit.Error
	switch {
	case m == connectionCloseOk:
		c.end()
	case m == connectionClose:
		c.send(0, connectionCloseOk, "", nil)
		c.end()
	case c.closing:
	case f.Kind != codec.FrameMethod:
		err = rabbit.Refusal(amqp.UnexpectedFrame, "expected method frame, got frame of type %d", f.Kind)
	case m == connectionStartOk && c.user == nil:
		c.startOk(d)
	case m == connectionTuneOk && c.user != nil:
		c.tuneOk(d)
	case m == connectionOpen && c.user != nil:
		err = c.openVhost(d)
	default:
		err = rabbit.Refusal(amqp.CommandInvalid, "unimplemented method")
	}
	if d.Failed() && err == nil {
		err = rabbit.Refusal(amqp.SyntaxError, "cannot decode %s", m)
	}
	if err != nil {
		c.fail(err, m)
	}
}

func (c *conn) startOk(d *codec.Decoder) {
	props := d.Table()
	mechanism := d.ShortStr()
	response := d.LongStr()
	c.name, _ = props["connection_name"].(string)
	c.able, _ = props["capabilities"].(amqp.Table)
	c.user = c.srv.login(mechanism, response)
	if c.user == nil {
		err := rabbit.Refusal(amqp.AccessRefused, "Login was refused using authentication mechanism %s. For details see the broker logfile.", mechanism)
		if !d.Failed() {
			c.fail(err, connectionStartOk)
		}
		return
	}
	o := c.srv.opts
	c.send(0, connectionTune, "", encode(uint16(o.ChannelMax), uint32(o.FrameMax), uint16(o.Heartbeat/time.Second)))
}

func (c *conn) tuneOk(d *codec.Decoder) {
	d.Short()
	c.frameMax = d.Long()
	c.interval = time.Duration(d.Short()) * time.Second
	if c.frameMax == 0 || c.frameMax > uint32(c.srv.opts.FrameMax) {
		c.frameMax = uint32(c.srv.opts.FrameMax)
	}
	if c.interval > 0 && c.beat == nil {
		c.beat = time.AfterFunc(c.interval/2, func() { c.srv.do(c.heartbeat) })
	}
}

// heartbeat sends a heartbeat if nothing else has been sent recently. It closes a connection on which nothing has
// arrived for two intervals, unless the connection is blocked and therefore not read.
func (c *conn) heartbeat() {
	now := time.Now()
	switch {
	case c.ended:
		return
	case now.Sub(c.received) > 2*c.interval && !c.blocked:
		c.end()
		return
	case now.Sub(c.sent) >= c.interval/2:
		c.write(codec.AppendFrame(nil, codec.Frame{Kind: codec.FrameHeartbeat}))
	}
	c.beat.Reset(c.interval / 2)
}

func (c *conn) openVhost(d *codec.Decoder) *rabbit.Error {
	name := d.ShortStr()
	v := c.srv.broker.VHost(name)
	if v == nil {
		return rabbit.Refusal(amqp.NotAllowed, "vhost %s not found", name)
	}
	if c.user.VHosts != nil && !slices.Contains(c.user.VHosts, name) {
		return rabbit.Refusal(amqp.NotAllowed, "access to vhost '%s' refused for user '%s'", name, c.user.Name)
	}
	c.vhost, c.vhostName, c.open = v, name, true
	c.send(0, connectionOpenOk, "", []byte{0})
	return nil
}

func (c *conn) fail(err *rabbit.Error, m method) {
	if c.closing || c.ended {
		return
	}
	c.closing = true
	c.endChannels()
	c.send(0, connectionClose, "", closing(err, m))
}

// closing returns the arguments of channel.close or connection.close for an error that the method m has caused.
func closing(err *rabbit.Error, m method) []byte {
	return encode(uint16(err.Code), err.Text, uint32(m))
}

func (c *conn) end() {
	if c.ended {
		return
	}
	c.ended = true
	c.endChannels()
	c.srv.broker.CloseOwner(c)
	if c.beat != nil {
		c.beat.Stop()
	}
	delete(c.srv.conns, c)
	_ = c.net.Close()
	c.srv.unblocked.Broadcast()
}

func (c *conn) endChannels() {
	for id, ch := range c.channels {
		ch.end()
		delete(c.channels, id)
	}
}

// send writes a method and its content, unless a Control decides otherwise. The parameter about is the queue or
// exchange that the method concerns.
func (c *conn) send(channel uint16, m method, about string, args []byte, content ...[]byte) {
	act := c.srv.faults.act(c, Frame{Method: m.String(), Name: about, Connection: c.name, Channel: channel})
	if !act.Drop {
		var payload codec.Encoder
		payload.Long(uint32(m))
		b := codec.AppendFrame(nil, codec.Frame{Kind: codec.FrameMethod, Channel: channel, Payload: append(payload.Bytes(), args...)})
		for i, part := range content {
			kind, most := uint8(codec.FrameBody), int(c.frameMax)-codec.FrameOverhead
			if i == 0 {
				kind, most = codec.FrameHeader, len(part)
			}
			for ; len(part) > 0; part = part[min(most, len(part)):] {
				b = codec.AppendFrame(b, codec.Frame{Kind: kind, Channel: channel, Payload: part[:min(most, len(part))]})
			}
		}
		c.write(b)
	}
	if act.Cut {
		c.end()
	}
}

func (c *conn) write(b []byte) {
	c.sent = time.Now()
	_, _ = c.net.Write(b) // ignore the error: the reader notices when the client is gone
}

// inbox holds back frames while an earlier one is delayed.
type inbox struct {
	stalled bool
	backlog []codec.Frame
}

// put handles a frame as the Controls decide, or queues it behind a delayed one.
func (in *inbox) put(c *conn, f codec.Frame, handle func(codec.Frame)) {
	if in.stalled {
		in.backlog = append(in.backlog, f)
		return
	}
	if f.Kind == codec.FrameMethod {
		act := c.srv.faults.act(c, arriving(c, f))
		switch ch := c.channels[f.Channel]; {
		case act.refusal != nil && ch != nil:
			m := methodIn(f.Payload)
			c.srv.calls[m]++
			ch.fail(act.refusal, m)
			return
		case act.Drop && act.Cut:
			c.end()
			return
		case act.Drop:
			return
		case act.Cut:
			handle(f)
			c.end()
			return
		case act.Delay > 0:
			in.stall(c, act.Delay, handle, func() { handle(f) })
			return
		}
	}
	handle(f)
}

// stall calls f after d, and then passes the frames that have arrived in the meantime to the function handle.
func (in *inbox) stall(c *conn, d time.Duration, handle func(codec.Frame), f func()) {
	in.stalled = true
	time.AfterFunc(d, func() {
		c.srv.do(func() {
			if c.ended {
				return
			}
			in.stalled = false
			f()
			for len(in.backlog) > 0 && !in.stalled && !c.ended {
				next := in.backlog[0]
				in.backlog = in.backlog[1:]
				in.put(c, next, handle)
			}
		})
	})
}
