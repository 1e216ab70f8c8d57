package codec

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// Types of frames.
const (
	FrameMethod    = 1
	FrameHeader    = 2
	FrameBody      = 3
	FrameHeartbeat = 8
)

const frameEnd = 0xCE

// FrameOverhead is the size of a frame without its payload, in bytes.
const FrameOverhead = 8

// Frame is one frame on the wire.
type Frame struct {
	Kind    uint8
	Channel uint16
	Payload []byte
}

// ErrFrame is returned for bytes that are not a frame, and for a frame that is too long.
var ErrFrame = errors.New("malformed frame")

// readChunk limits how much memory is allocated before the bytes have arrived.
const readChunk = 64 << 10

// ReadFrame reads a frame of at most limit bytes, including its head and end; 0 means no limit. It fails with ErrFrame
// or the reader's error.
func ReadFrame(r *bufio.Reader, limit uint32) (Frame, error) {
	var head [7]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: head[0], Channel: binary.BigEndian.Uint16(head[1:])}
	size := binary.BigEndian.Uint32(head[3:])
	if limit != 0 && uint64(size)+FrameOverhead > uint64(limit) {
		return Frame{}, ErrFrame
	}
	for left := int(size); left > 0; {
		n := min(left, readChunk)
		at := len(f.Payload)
		f.Payload = append(f.Payload, make([]byte, n)...)
		if _, err := io.ReadFull(r, f.Payload[at:]); err != nil {
			return Frame{}, err
		}
		left -= n
	}
	end, err := r.ReadByte()
	if err != nil {
		return Frame{}, err
	}
	if end != frameEnd {
		return Frame{}, ErrFrame
	}
	return f, nil
}

// AppendFrame appends a frame to b.
func AppendFrame(b []byte, f Frame) []byte {
	b = append(b, f.Kind)
	b = binary.BigEndian.AppendUint16(b, f.Channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Payload)))
	b = append(b, f.Payload...)
	return append(b, frameEnd)
}
