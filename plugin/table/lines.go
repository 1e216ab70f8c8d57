package table

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Line is what Read and Delete print in one line; one field is set.
type Line struct {
	Head    *Head
	Row     *Row
	End     *End
	Deleted *int64
}

// Head comes first.
type Head struct {
	Node []byte `json:"node"`
	Now  int64  `json:"now"`  // the broker's clock, epoch ms
	Rows int64  `json:"rows"` // of all virtual hosts; -1 where the node has no table of the plugin
	// Elsewhere is how many other nodes have a table of their own.
	Elsewhere int `json:"elsewhere"`
	// HasQueue reports whether the node's broker has the queue that Look was asked about.
	HasQueue bool `json:"has_queue"`
}

// Row is a message that waits.
type Row struct {
	Due        int64    `json:"due"` // epoch ms, by the broker's clock
	Exchange   []byte   `json:"exchange"`
	Ref        []byte   `json:"ref"`
	Keys       [][]byte `json:"keys"` // routing keys, CC and BCC among them
	Properties []byte   `json:"properties"`
	Body       []byte   `json:"body"`
	Unreadable []byte   `json:"unreadable"` // why the broker could not take the row apart
}

// End comes last: without it the answer is not complete.
type End struct {
	Soon  int64 `json:"soon"`  // due within the margin, and not printed
	Other int64 `json:"other"` // of other virtual hosts and exchanges
}

// ParseLine reads a line that an expression printed. Ok is false for what rabbitmqctl
// prints itself.
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

// ID identifies the row among those of its node.
func (r *Row) ID() ID { return ID{r.Due, r.Ref} }

// DueAt returns the due instant, by the broker's clock.
func (r *Row) DueAt() time.Time { return time.UnixMilli(r.Due) }

// MessageID returns an id for a message that has none: the same however often the row is
// read, and no other row's.
func (r *Row) MessageID(node string) string {
	sum := sha256.Sum256([]byte(node + "\n" + r.ID().String()))
	return "plugin-" + hex.EncodeToString(sum[:16])
}
