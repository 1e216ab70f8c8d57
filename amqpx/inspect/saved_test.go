package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// everything returns a message with all properties and with headers of all types.
func everything() amqp.Delivery {
	return amqp.Delivery{
		Exchange: "e", RoutingKey: "k", Redelivered: true, MessageId: "id", Timestamp: time.Unix(1_700_000_000, 0), Type: "t", ContentType: "text/plain",
		ContentEncoding: "gzip", DeliveryMode: 2, Priority: 4, CorrelationId: "c", ReplyTo: "r", Expiration: "1000", UserId: "guest", AppId: "app <1>",
		Headers: amqp.Table{
			"nil": nil, "bool": true, "string": "ü\n", "binary": "\xff\x00", "int8": int8(-8), "int16": int16(-16), "int32": int32(-32), "int64": int64(64),
			"large": int64(math.MaxInt64), "uint8": uint8(8), "uint16": uint16(16), "uint32": uint32(math.MaxUint32), "float32": float32(0.1), "float64": 1e300,
			"inf": math.Inf(-1), "decimal": amqp.Decimal{Scale: 2, Value: -1999}, "time": time.Unix(1, 0), "far": time.Unix(1<<40, 0), "bytes": []byte{0, 1},
			"table": amqp.Table{"": amqp.Table{"n": int32(1)}, "base64:x": "y"}, "array": []any{int32(1), "two", []any{}, amqp.Table{}}, "\xfe": "z",
		},
		Body: []byte("body"),
	}
}

func roundTrip(t *testing.T, m SavedMessage) (again SavedMessage, line []byte) {
	t.Helper()
	line, err := m.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(line, &again)
	}
	if err != nil || bytes.ContainsRune(line, '\n') {
		t.Fatalf("writing and reading a message: got the error %v and the text\n%s\nwant no error and one line", err, line)
	}
	return again, line
}

func TestSavedMessage(t *testing.T) {
	m := SavedMessage{Queue: "q.dead", Saved: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), Message: everything()}
	again, line := roundTrip(t, m)
	if !reflect.DeepEqual(again, m) {
		t.Errorf("reading %s:\n got %#v\nwant %#v", line, again, m)
	}
	for body, want := range map[string]string{
		"": `"body":""`, "{\"a\": 1}\r\n\t<ü>": `"body":"{\"a\": 1}\r\n\t<ü>"`, "\x00": `"body_base64":"AA=="`,
		"\xff": `"body_base64":"/w=="`, "\u0085": `"body_base64":"woU="`,
	} {
		again, line := roundTrip(t, SavedMessage{Queue: "q", Message: amqp.Delivery{Body: []byte(body)}})
		if !strings.Contains(string(line), want) || string(again.Message.Body) != body {
			t.Errorf("body %q: got the line %s, read again as %q, want %s and the same body", body, line, again.Message.Body, want)
		}
	}
	if _, line := roundTrip(t, SavedMessage{Queue: "q", Message: amqp.Delivery{Body: []byte("x")}}); string(line) != `{"queue":"q","body":"x"}` {
		t.Errorf(`the JSON of a saved message with only a body: got %s, want "{"queue":"q","body":"x"}"`, line)
	}
}

// The error about an invalid line says what was found and what was expected.
func TestSavedMessageRefuses(t *testing.T) {
	for line, says := range map[string]string{
		`{"body":"x"}`:  `no "queue"`,
		`{"queue":"q"}`: `expected exactly one of "body" (a string) and "body_base64"`,
		`{"queue":"q","body":"x","body_base64":"eA=="}`:                        `expected exactly one of "body"`,
		`{"queue":"q","body":{"a":1}}`:                                         `"body" is a JSON object; expected a string`,
		`{"queue":"q","boby":"x"}`:                                             `unknown field "boby"`,
		`{"queue":"q","body_base64":"?"}`:                                      "expected base64",
		`{"queue":"q","body":"x","message_id":7}`:                              "expected a string",
		`{"queue":"q","body":"x","priority":256}`:                              "256",
		`{"queue":"q","body":"x","timestamp":"now"}`:                           "expected a time such as",
		`{"queue":"q","body":"x","headers":[]}`:                                "expected an object with headers",
		`{"queue":"q","body":"x","headers":{"n":1.5}}`:                         `header "n": 1.5; expected a whole number, or a type such as {"float64": 1.5}`,
		`{"queue":"q","body":"x","headers":{"n":{}}}`:                          `header "n": {}; expected a type with its value`,
		`{"queue":"q","body":"x","headers":{"n":{"int":1}}}`:                   `header "n": {"int":1}; expected a type with its value`,
		`{"queue":"q","body":"x","headers":{"n":{"int8":128}}}`:                "int8: 128; expected a whole number from -128 to 127",
		`{"queue":"q","body":"x","headers":{"n":{"float64":"x"}}}`:             "expected a 64-bit floating-point number",
		`{"queue":"q","body":"x","headers":{"n":{"decimal":19.99}}}`:           "expected scale and value",
		`{"queue":"q","body":"x","headers":{"n":{"table":{"m":{"bytes":1}}}}}`: `table: header "m": bytes: 1; expected base64 in a string`,
		`{"queue":"q","body":"x"} {}`:                                          "after top-level value",
	} {
		var m SavedMessage
		if err := json.Unmarshal([]byte(line), &m); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("reading %s:\n got %v\nwant %s", line, err, says)
		}
	}
}

// FuzzSavedMessage checks that arbitrary data can be read without a panic, and that a message that was read is always
// written in the same way.
func FuzzSavedMessage(f *testing.F) {
	line, err := SavedMessage{Queue: "q", Message: everything()}.MarshalJSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Fuzz(func(t *testing.T, line []byte) {
		var m SavedMessage
		if json.Unmarshal(line, &m) != nil {
			return
		}
		again, line := roundTrip(t, m)
		_, twice := roundTrip(t, again)
		if !bytes.Equal(line, twice) {
			t.Errorf("writing the message a second time:\n got %s\nwant %s", twice, line)
		}
	})
}

func TestSaveFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.jsonl")
	f, err := CreateSaveFile(path)
	if err != nil {
		t.Fatal(err)
	}
	message := func(id string) SavedMessage {
		return SavedMessage{Queue: "q", Message: amqp.Delivery{MessageId: id, Body: bytes.Repeat([]byte(id), 3<<20)}}
	}
	for _, ids := range []string{"ab", "c"} {
		var list []SavedMessage
		for _, id := range ids {
			list = append(list, message(string(id)))
		}
		if err := f.Save(list); err != nil {
			t.Fatalf("Save of %s: got %v, want no error", ids, err)
		}
	}
	if _, err := CreateSaveFile(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("CreateSaveFile with an existing name: got %v, want fs.ErrExist", err)
	}
	if err := f.Close(); err != nil || f.Written() != 3 {
		t.Errorf("Close: got %v and %d written messages, want no error and 3", err, f.Written())
	}
	got := ""
	for m, err := range SavedIn(path) {
		if err != nil || len(m.Message.Body) != 3<<20 {
			t.Fatalf("SavedIn: got a body of %d bytes and error %v, want %d bytes and no error", len(m.Message.Body), err, 3<<20)
		}
		if got += m.Message.MessageId; m.Line != len(got) {
			t.Errorf("SavedIn, after %s: got Line = %d, want %d", got, m.Line, len(got))
		}
	}
	if got != "abc" {
		t.Errorf(`SavedIn: got the messages %q, want "abc"`, got)
	}

	// Closing an empty file removes it.
	empty := filepath.Join(t.TempDir(), "empty")
	if f, err = CreateSaveFile(empty); err == nil {
		err = f.Close()
	}
	if _, there := os.Stat(empty); err != nil || !errors.Is(there, fs.ErrNotExist) {
		t.Errorf("an empty file: got %v from Close and %v from Stat, want no error and fs.ErrNotExist", err, there)
	}
}

// If the disk is full, Save returns an error, and so does every later call.
func TestSaveFileOnAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("/dev/full does not exist")
	}
	f := &SaveFile{f: full, path: "full"}
	for range 2 {
		if err := f.Save([]SavedMessage{{Queue: "q"}}); err == nil || !strings.Contains(err.Error(), "no space left on device") || f.Written() != 0 {
			t.Errorf(`Save on a full disk: got the error %v and %d messages written, want an error with "no space left on device" and 0`, err, f.Written())
		}
	}
	_ = full.Close()
}

func TestSavedInWithAMistake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.jsonl")
	for text, says := range map[string]string{
		"\n{\"queue\":\"q\",\"body\":\"\"}\n\n{\"queue\":\"q\"}\n":         path + ":4: expected exactly one of",
		"{\"queue\":\"q\",\"body\":\"\"}\n{\"queue\":\"q\",\"bo":           path + ":2: the line is truncated",
		"{\"queue\":\"q\",\"body\":\"\"}\n{\"queue\":\"q\",\"body\":{}}\n": path + `:2: "body" is a JSON object; expected a string`,
		"{\"queue\":\"q\",\"body\":\"\"}\n{\"queue\":\"q\",\"body\":\"\"}": "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatalf("writing %q: got %v, want nil", text, err)
		}
		n := 0
		var failed error
		for _, err := range SavedIn(path) {
			if n++; err != nil {
				failed = err
			}
		}
		if (failed == nil) != (says == "") || failed != nil && !strings.Contains(failed.Error(), says) || n != 2 {
			t.Errorf(`file %q: got %d messages, error %v, want 2 and an error with %q ("" means no error)`, text, n, failed, says)
		}
	}
	for _, err := range SavedIn(path + "x") {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file that does not exist: got %v, want fs.ErrNotExist", err)
		}
	}
}
