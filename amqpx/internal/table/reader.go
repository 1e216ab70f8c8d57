package table

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
)

// These headers replace a message's own headers if amqp091 cannot read them; see Reader.
const (
	HeaderUnreadable = naming.HeaderUnreadable             // string: the reason
	HeaderRaw        = naming.HeaderPrefix + "raw-headers" // bytes: the headers as the broker sent them
)

// Reader is a connection below amqp091. amqp091 closes the connection when it receives headers that it cannot read,
// because they are malformed, too many, nested too deeply or longer than a frame. It would do so again at each
// redelivery. Of the headers of such a message, Reader keeps only those that rabbitdelay and the broker wrote. It adds
// HeaderUnreadable and HeaderRaw. The message can then be inspected, requeued or dead-lettered. The message on the
// broker does not change.
type Reader struct {
	net.Conn

	in       *bufio.Reader
	pass     int64         // number of bytes to pass on unchanged next
	instead  []byte        // data that replaces a frame, and is returned before anything else
	frameMax atomic.Uint32 // as negotiated; 0 before that, and for no limit
}

// readBuffer is the maximum size of one read from the connection. A header frame that is only partly in the buffer is
// copied.
const readBuffer = 32 << 10

// maxHeaderFrame is the largest header frame that is buffered and checked. RabbitMQ's frame_max is 128 KiB by default.
const maxHeaderFrame = 1 << 20

// AMQP frame types and sizes.
const (
	frameHeader   = 2
	frameHead     = 7 // type, channel, size
	frameOverhead = frameHead + 1
)

// NewReader returns a Reader that reads from c.
func NewReader(c net.Conn) *Reader {
	return &Reader{Conn: c, in: bufio.NewReaderSize(c, readBuffer)}
}

// SetFrameMax sets the negotiated maximum frame size in bytes; 0 means no limit. It may be called while Read runs.
func (c *Reader) SetFrameMax(size int) { c.frameMax.Store(uint32(size)) }

// Read returns the data that has arrived. It waits for data only if it has none to return.
func (c *Reader) Read(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		switch {
		case len(c.instead) > 0:
			m = copy(p[n:], c.instead)
			c.instead = c.instead[m:]
		case n > 0 && !c.more():
			return n, nil
		case c.pass > 0:
			m, err = c.in.Read(p[n:min(int64(len(p)), int64(n)+c.pass)])
			c.pass -= int64(m)
		default:
			err = c.next()
		}
		n += m
	}
	return n, err
}

// more reports whether the next step of Read can run without waiting for data.
func (c *Reader) more() bool {
	have := c.in.Buffered()
	if c.pass > 0 || have < frameHead {
		return c.pass > 0 && have > 0
	}
	head, _ := c.in.Peek(frameHead)
	return head[0] != frameHeader || have >= frameSize(head)
}

func frameSize(head []byte) int { return int(binary.BigEndian.Uint32(head[3:])) + frameOverhead }

// next examines the frames that have arrived, and decides whether to pass them on unchanged.
func (c *Reader) next() error {
	have, err := c.in.Peek(max(frameHead, c.in.Buffered()))
	if len(have) < frameHead { // the head of the frame is incomplete, or the data has ended
		c.pass = int64(len(have))
		if len(have) > 0 {
			return nil
		}
		return err
	}
	for len(have) >= frameHead {
		size := frameSize(have)
		if have[0] == frameHeader && size <= maxHeaderFrame && (size > len(have) || c.readable(have[:size]) != nil) {
			break
		}
		c.pass += int64(size)
		have = have[min(size, len(have)):]
	}
	if c.pass > 0 {
		return nil
	}
	c.header(frameSize(have))
	return nil
}

// header reads a whole header frame and decides whether to pass it on unchanged. If the frame is truncated, the
// available bytes are passed on unchanged, and the next Read returns the error.
func (c *Reader) header(size int) {
	frame := make([]byte, size)
	n, err := io.ReadFull(c.in, frame)
	c.instead = frame[:n]
	if err != nil {
		return
	}
	if other := c.readable(frame); other != nil {
		c.instead = other
	}
}

// readable returns the replacement for a header frame, or nil if the frame can be passed on unchanged.
func (c *Reader) readable(frame []byte) []byte {
	headers, ok := headersOf(frame)
	if !ok {
		return nil
	}
	rest, err := skipTable(headers, 0)
	limit := int(c.frameMax.Load())
	if err == nil && limit != 0 && len(frame) > limit {
		err = errLongHeaders
	}
	if err == nil {
		return nil
	}
	return rewritten(frame, headers[:len(headers)-len(rest)], rest, limit, err)
}

// headersOf returns the part of a header frame that begins with its headers table.
func headersOf(frame []byte) (from []byte, ok bool) {
	const fixed, contentType, contentEncoding, headers = 14, 1 << 15, 1 << 14, 1 << 13
	payload := frame[frameHead : len(frame)-1]
	if len(payload) < fixed {
		return nil, false
	}
	flags := binary.BigEndian.Uint16(payload[fixed-2:])
	from = payload[fixed:]
	for _, before := range []uint16{contentType, contentEncoding} {
		if flags&before == 0 {
			continue
		}
		if len(from) == 0 || len(from) < 1+int(from[0]) {
			return nil, false
		}
		from = from[1+int(from[0]):]
	}
	return from, flags&headers != 0
}

// maxKept limits the total size of the headers that are kept if a message's headers cannot be read.
const maxKept = 8 << 10

// rewritten returns a copy of a header frame with its headers replaced as Reader describes. The parameter rest is the
// part of the frame between the headers and the last byte, and limit is the maximum size of a frame, or 0.
func rewritten(frame, headers, rest []byte, limit int, why error) []byte {
	out := append(make([]byte, 0, len(frame)+512), frame[:len(frame)-1-len(rest)-len(headers)]...)
	table, most := len(out), maxKept
	if limit != 0 {
		most = min(most, limit/4)
	}
	out = append(out, 0, 0, 0, 0)
	raw := headers[min(4, len(headers)):]
	for left := raw; len(left) > 0; {
		next, err := skipField(left, 0)
		if next == nil {
			break
		}
		if field := left[:len(left)-len(next)]; err == nil && kept(string(field[1:1+field[0]])) && len(out)+len(field) < table+most {
			out = append(out, field...)
		}
		left = next
	}
	out = appendField(out, HeaderUnreadable, 'S', []byte(why.Error()))
	if over := len(out) + 1 + len(HeaderRaw) + 5 + len(raw) + len(rest) + 1 - limit; limit != 0 && over > 0 {
		raw = raw[:max(0, len(raw)-over)]
	}
	out = appendField(out, HeaderRaw, 'x', raw)
	binary.BigEndian.PutUint32(out[table:], uint32(len(out)-table-4))
	out = append(append(out, rest...), frame[len(frame)-1])
	binary.BigEndian.PutUint32(out[3:], uint32(len(out)-frameOverhead))
	return out
}

// kept reports whether a header is kept even if the message's headers cannot be read.
func kept(name string) bool {
	switch name {
	case HeaderUnreadable, HeaderRaw, naming.HeaderPrefix + "reason":
		return false
	}
	return strings.HasPrefix(name, naming.HeaderPrefix) || strings.HasPrefix(name, "x-")
}

func appendField(b []byte, name string, kind byte, value []byte) []byte {
	b = append(append(b, byte(len(name))), name...)
	b = binary.BigEndian.AppendUint32(append(b, kind), uint32(len(value)))
	return append(b, value...)
}

// The reasons why headers cannot be read.
var (
	errDeepHeaders   = fmt.Errorf("headers nested deeper than %d levels", MaxDepth)
	errManyHeaders   = fmt.Errorf("headers with more than %d elements in a table or an array", MaxElements)
	errLongHeaders   = errors.New("headers that, together with those added by the broker, are longer than a frame")
	errBrokenHeaders = errors.New("headers that are malformed, or have a value of an unknown type")
)

// widths contains the encoded size of each value type in bytes, including the byte for the type itself.
var widths = [256]byte{'V': 1, 't': 2, 'b': 2, 'B': 2, 's': 3, 'u': 3, 'I': 5, 'i': 5, 'f': 5, 'D': 6, 'l': 9, 'd': 9, 'T': 9}

// skipTable returns the bytes that follow an encoded table, and the reason why amqp091 could not read the table. The
// bytes are nil if the end of the table is unknown.
func skipTable(b []byte, depth int) (rest []byte, err error) {
	return skipContainer(b, depth, skipField)
}

func skipContainer(b []byte, depth int, skip func(b []byte, depth int) ([]byte, error)) (rest []byte, err error) {
	content, rest := cutLong(b)
	switch {
	case rest == nil:
		return nil, errBrokenHeaders
	case depth > MaxDepth:
		return rest, errDeepHeaders
	}
	for elements := 0; len(content) > 0; elements++ {
		if elements == MaxElements {
			return rest, errManyHeaders
		}
		if content, err = skip(content, depth); err != nil {
			return rest, err
		}
	}
	return rest, nil
}

// skipField returns the bytes that follow a field, which is a name with its value.
func skipField(b []byte, depth int) (rest []byte, err error) {
	if len(b) < 1+int(b[0]) {
		return nil, errBrokenHeaders
	}
	return skipValue(b[1+int(b[0]):], depth)
}

func skipValue(b []byte, depth int) (rest []byte, err error) {
	if len(b) == 0 {
		return nil, errBrokenHeaders
	}
	switch b[0] {
	case 'F':
		return skipTable(b[1:], depth+1)
	case 'A':
		return skipContainer(b[1:], depth+1, skipValue)
	case 'S', 'x':
		if _, rest = cutLong(b[1:]); rest == nil {
			err = errBrokenHeaders
		}
		return rest, err
	}
	n := int(widths[b[0]])
	if n == 0 || n > len(b) {
		return nil, errBrokenHeaders
	}
	return b[n:], nil
}

// cutLong splits off a value that is preceded by its length. rest is nil if b is too short.
func cutLong(b []byte) (content, rest []byte) {
	if len(b) < 4 {
		return nil, nil
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if n > uint64(len(b)-4) {
		return nil, nil
	}
	return b[4 : 4+n], b[4+n:]
}
