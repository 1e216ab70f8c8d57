package drain

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	table "github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/plugintable"
)

// fakeTable is a fake of the plugin's table, which is read and changed through its shell.
type fakeTable struct {
	mu   sync.Mutex
	rows []table.Row
	// cut returns the part of the nth answer, counted from 0, that arrives, and the error after it.
	cut   func(n int, answer string) (string, error)
	calls int
	// foreign means that the table belongs to a broker other than the client's.
	foreign bool
}

var errCut = errors.New("the shell was killed")

// fill adds n rows that are due from the given time on, one second apart.
func (f *fakeTable) fill(n int, from time.Time, properties string) {
	for i := range n {
		f.rows = append(f.rows, table.Row{
			Due: from.Add(time.Duration(i) * time.Second).UnixMilli(), Exchange: []byte("orders"), Ref: fmt.Append(nil, "ref", i),
			Keys: [][]byte{[]byte("a")}, Properties: []byte(properties), Body: fmt.Append(nil, i),
		})
	}
}

func (f *fakeTable) shell(_ context.Context, expression string) (io.ReadCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := fmt.Sprintf("{\"node\":%q,\"now\":%d,\"rows\":%d,\"elsewhere\":0,\"has_queue\":%t}\n",
		base64.StdEncoding.EncodeToString([]byte("rabbit@a")), time.Now().UnixMilli(), len(f.rows), !f.foreign)
	switch {
	case strings.Contains(expression, "sys:replace_state"):
		answer = f.delete(expression)
	case strings.Contains(expression, "Walk("):
		answer += f.read()
	}
	var err error
	answer = "noise\n" + answer + "ok\n"
	if f.cut != nil {
		answer, err = f.cut(f.calls, answer)
	}
	f.calls++
	return &cutReader{strings.NewReader(answer), err}, nil
}

func (f *fakeTable) read() string {
	var out strings.Builder
	for _, r := range f.rows {
		line, _ := json.Marshal(map[string]any{"due": r.Due, "exchange": r.Exchange, "ref": r.Ref, "keys": r.Keys, "properties": r.Properties, "body": r.Body})
		out.Write(append(line, '\n'))
	}
	out.WriteString(`{"end":true,"soon":2,"other":0}` + "\n")
	return out.String()
}

var lists = regexp.MustCompile(`binary:split\(<<"([^"]*)">>`)

func (f *fakeTable) delete(expression string) string {
	n := 0
	for s := range strings.SplitSeq(lists.FindStringSubmatch(expression)[1], ";") {
		for i, r := range f.rows {
			if r.ID().String() == s {
				f.rows = append(f.rows[:i:i], f.rows[i+1:]...)
				n++
				break
			}
		}
	}
	return fmt.Sprintf("{\"deleted\":%d}\n", n)
}

type cutReader struct {
	io.Reader
	err error
}

func (c *cutReader) Close() error { return c.err }
