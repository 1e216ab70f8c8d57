package table

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Line is one line that Read or Delete prints. Exactly one field is set.
type Line struct {
	Head    *Head
	Row     *Row
	End     *End
	Deleted *int64
}

// Head is the first line of the output.
type Head struct {
	Node []byte `json:"node"`
	Now  int64  `json:"now"`  // the broker's clock, epoch ms
	Rows int64  `json:"rows"` // in all virtual hosts; -1 if the node has no table of the plugin
	// Elsewhere is the number of other nodes' tables that this node knows.
	Elsewhere int `json:"elsewhere"`
	// HasQueue is true if the broker has the queue that was passed to Look.
	HasQueue bool `json:"has_queue"`
}

// Row is a waiting message.
type Row struct {
	Due        int64    `json:"due"` // epoch ms, by the broker's clock
	Exchange   []byte   `json:"exchange"`
	Ref        []byte   `json:"ref"`
	Keys       [][]byte `json:"keys"` // routing keys, including CC and BCC
	Properties []byte   `json:"properties"`
	Body       []byte   `json:"body"`
	Unreadable []byte   `json:"unreadable"` // why the broker could not decode the row
}

// End is the last line of the output. If it is missing, the output is incomplete.
type End struct {
	Soon  int64 `json:"soon"`  // messages due within the margin, which are not printed
	Other int64 `json:"other"` // messages of other virtual hosts and exchanges
}

// ParseLine parses a line that an expression has printed. The result ok is false for rabbitmqctl's own output.
func ParseLine(line []byte) (l Line, ok bool, err error) {
	if len(line) == 0 || line[0] != '{' {
		return l, false, nil
	}
	var v struct {
		Head
		Row
		End
		Ended   bool    `json:"end"`
		Deleted *int64  `json:"deleted"`
		Ref     *[]byte `json:"ref"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return l, false, fmt.Errorf("expected a line of JSON, got %d bytes: %w", len(line), err)
	}
	switch {
	case v.Deleted != nil:
		l.Deleted = v.Deleted
	case v.Ended:
		l.End = &v.End
	case v.Ref != nil:
		l.Row = &v.Row
		l.Row.Ref = *v.Ref
	case len(v.Node) > 0:
		l.Head = &v.Head
	default:
		return l, false, nil
	}
	return l, true, nil
}

// ID returns the row's ID, which is unique on its node.
func (r *Row) ID() ID { return ID{r.Due, r.Ref} }

// DueAt returns the time at which the message is due, by the broker's clock.
func (r *Row) DueAt() time.Time { return time.UnixMilli(r.Due) }

// MessageID returns a message ID for a message that has none. The ID is the same every time the row is read, and
// differs from that of any other row.
func (r *Row) MessageID(node string) string {
	sum := sha256.Sum256([]byte(node + "\n" + r.ID().String()))
	return "plugin-" + hex.EncodeToString(sum[:16])
}
