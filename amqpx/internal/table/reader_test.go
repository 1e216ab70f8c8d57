package table

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
)

// destination is a header that rabbitdelay reads.
const destination = naming.HeaderDestination

// frameWith returns a frame with the given payload.
func frameWith(kind byte, payload []byte) []byte {
	f := binary.BigEndian.AppendUint32([]byte{kind, 0, 1}, uint32(len(payload)))
	return append(append(f, payload...), 0xCE)
}

// headerWith returns a header frame that contains the encoded headers, preceded by a content type and followed by a
// message ID.
func headerWith(fields []byte) []byte {
	p := append(make([]byte, 12), 0xA0, 0x80, 4, 't', 'e', 'x', 't')
	p = binary.BigEndian.AppendUint32(p, uint32(len(fields)))
	return frameWith(frameHeader, append(append(p, fields...), 1, 'i'))
}

// fields returns encoded headers, the first of which is an array with n elements.
func fields(n int) []byte {
	f := append([]byte{3}, "idsA"...)
	f = append(binary.BigEndian.AppendUint32(f, uint32(n)), bytes.Repeat([]byte{'V'}, n)...)
	f = appendField(f, destination, 'S', []byte("orders"))
	return appendField(f, "other", 'S', []byte("gone"))
}

// fromReader is a connection whose Read reads from Reader.
type fromReader struct {
	net.Conn
	io.Reader
}

func (f fromReader) Read(p []byte) (int, error) { return f.Reader.Read(p) }

// However the bytes are split, the reader passes frames unchanged, except that it replaces headers that amqp091 cannot
// read. The replacement contains the headers that rabbitdelay reads, and all original headers as bytes.
func TestReader(t *testing.T) {
	bad := fields(MaxElements + 1)
	replaced := appendField(nil, destination, 'S', []byte("orders"))
	replaced = appendField(replaced, HeaderUnreadable, 'S', []byte(errManyHeaders.Error()))
	replaced = appendField(replaced, HeaderRaw, 'x', bad)
	frames := [][2][]byte{
		{frameWith(1, []byte("a method"))},
		{headerWith(fields(MaxElements))},
		{headerWith(nil)},
		{frameWith(3, bytes.Repeat([]byte("body"), 20_000))},
		{frameWith(8, nil)},
		{headerWith(bad), headerWith(replaced)},
		{headerWith(appendField(nil, "long", 'S', make([]byte, 100_000)))},
		{
			headerWith([]byte{1, 'a', '?'}),
			headerWith(appendField(appendField(nil, HeaderUnreadable, 'S', []byte(errBrokenHeaders.Error())), HeaderRaw, 'x', []byte{1, 'a', '?'})),
		},
	}
	rapid.Check(t, func(t *rapid.T) {
		var in, want []byte
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(frames)-1), 0, 8).Draw(t, "frames") {
			f := frames[i]
			in = append(in, f[0]...)
			if f[1] == nil {
				f[1] = f[0]
			}
			want = append(want, f[1]...)
		}
		cut := rapid.SampledFrom([]int{0, 0, 1, 5, 100}).Draw(t, "cut off")
		in = in[:max(0, len(in)-cut)]
		var src io.Reader = bytes.NewReader(in)
		if rapid.Bool().Draw(t, "byte by byte") {
			src = iotest.OneByteReader(src)
		}
		out := bufio.NewReaderSize(NewReader(fromReader{nil, src}), rapid.SampledFrom([]int{16, 4096}).Draw(t, "buffer"))
		got, err := io.ReadAll(out)
		if err != nil || cut == 0 && !bytes.Equal(got, want) {
			t.Fatalf("reading through the Reader: got %d bytes, %v, want the %d expected bytes and no error:\ngot  %.200q\nwant %.200q", len(got), err, len(want), got, want)
		}
	})
}

// BenchmarkReadable measures the time to read a delivery from the socket, with and without checking its headers.
func BenchmarkReadable(b *testing.B) {
	var headers []byte
	for _, name := range []string{naming.HeaderPrefix + "due", "traceparent", "tenant", "kind"} {
		headers = appendField(headers, name, 'S', []byte("00-0af7651916cd43dd8448eb211c80319c"))
	}
	message := append(append(frameWith(1, make([]byte, 60)), headerWith(headers)...), frameWith(3, make([]byte, 256))...)
	stream := bytes.Repeat(message, 1000)
	for name, with := range map[string]func(net.Conn) net.Conn{
		"without": func(c net.Conn) net.Conn { return c },
		"with":    func(c net.Conn) net.Conn { return NewReader(c) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%1000 != 0 {
					continue
				}
				r := bufio.NewReader(with(fromReader{nil, bytes.NewReader(stream)}))
				if n, err := io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}); err != nil || int(n) != len(stream) {
					b.Fatalf("copying through the Reader: got %d bytes, %v, want %d and no error", n, err, len(stream))
				}
			}
		})
	}
}
