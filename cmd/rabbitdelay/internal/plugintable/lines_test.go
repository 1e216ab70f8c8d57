package table

import (
	"bytes"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseLine(t *testing.T) {
	for line, want := range map[string]func(Line) bool{
		`{"node":"cmFiYml0QGE=","now":5,"rows":7,"elsewhere":1}`: func(l Line) bool {
			return l.Head != nil && string(l.Head.Node) == "rabbit@a" && l.Head.Rows == 7 && l.Head.Elsewhere == 1
		},
		`{"due":9,"exchange":"b3JkZXJz","ref":"AQ==","keys":["YQ=="],"properties":"AAA=","body":""}`: func(l Line) bool {
			return l.Row != nil && l.Row.Due == 9 && string(l.Row.Exchange) == "orders" &&
				bytes.Equal(l.Row.Ref, []byte{1}) && string(l.Row.Keys[0]) == "a"
		},
		`{"end":true,"soon":3,"other":4}`: func(l Line) bool { return l.End != nil && l.End.Soon == 3 && l.End.Other == 4 },
		`{"deleted":0}`:                   func(l Line) bool { return l.Deleted != nil && *l.Deleted == 0 },
		`ok`:                              func(l Line) bool { return l == Line{} },
		`{}`:                              func(l Line) bool { return l == Line{} },
	} {
		l, _, err := ParseLine([]byte(line + "\n"))
		if err != nil {
			t.Errorf("ParseLine(%s): got %v, want no error", line, err)
		}
		if !want(l) {
			t.Errorf("ParseLine(%s) = %+v, want the line's fields", line, l)
		}
	}
	if l, _, err := ParseLine([]byte(`{"due":`)); err == nil {
		t.Errorf("ParseLine of an incomplete line: got %+v, want an error", l)
	}
}

// A formatted id can be parsed again, and can be used in an Erlang expression.
func TestID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := ID{rapid.Int64().Draw(t, "due"), rapid.SliceOfN(rapid.Byte(), 1, 60).Draw(t, "ref")}
		got, err := ParseID(id.String())
		if err != nil {
			t.Errorf("ParseID(%v): got %v, want no error", id, err)
		}
		if got.Due != id.Due {
			t.Errorf("ParseID(%v): got Due = %d, want %d", id, got.Due, id.Due)
		}
		if !bytes.Equal(got.Ref, id.Ref) {
			t.Errorf("ParseID(%v): got Ref = %v, want %v", id, got.Ref, id.Ref)
		}
		if strings.ContainsAny(id.String(), "\";\n\\") {
			t.Errorf("the id %v contains a character that would end a string in an Erlang expression", id)
		}
	})
	for _, s := range []string{"", "1", "x AQ==", "1 !", "1 "} {
		if _, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q): got no error", s)
		}
	}
}

// ParseLine parses, ignores or rejects any output. The formatted id of a parsed row can be parsed again.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"node":"cmFiYml0QGE=","now":5,"rows":7,"elsewhere":1}`))
	f.Add([]byte(`{"due":9,"exchange":"b3JkZXJz","ref":"AQ==","keys":["YQ=="],"properties":"AAA=","body":""}`))
	f.Add([]byte(`{"end":true,"soon":3,"other":4}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		l, ok, err := ParseLine(line)
		if ok && err != nil || !ok && l != (Line{}) {
			t.Fatalf("ParseLine returned %+v, %t and the error %v, want no error with true, and an empty Line with false", l, ok, err)
		}
		if l.Row == nil || len(l.Row.Ref) == 0 {
			return
		}
		if id, err := ParseID(l.Row.ID().String()); err != nil || id.Due != l.Row.Due || !bytes.Equal(id.Ref, l.Row.Ref) {
			t.Fatalf("ParseID(%v): got %v (error %v), want Due = %v and Ref = %v", l.Row.ID(), id, err, l.Row.Due, l.Row.Ref)
		}
	})
}
