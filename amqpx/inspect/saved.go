package inspect

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
)

// SavedMessage is a message that is stored outside a broker, with all its properties, its headers and its body. Its
// JSON form is one line of the file that SaveFile writes and SavedIn reads; docs/operations.md describes the format.
type SavedMessage struct {
	Queue   string    // the queue from which it was taken
	Saved   time.Time // when it was taken
	Message amqp.Delivery

	// Line is the line number at which SavedIn found it, counted from 1; otherwise 0.
	Line int
	// edited reports whether the line of a task's message differs from what SaveFile has written, judging by its
	// digest. A line without a digest counts as edited. Requeue revives a task from its row and not from the file. If
	// the line of such a message was edited, Requeue therefore leaves the message in the file.
	edited bool
}

// savedLine is the JSON form of a SavedMessage. Properties have the same names as in AMQP.
type savedLine struct {
	Queue           text          `json:"queue"`
	Saved           *time.Time    `json:"saved,omitempty"`
	Exchange        text          `json:"exchange,omitzero"` // the exchange to which it was last published
	RoutingKey      text          `json:"routing_key,omitzero"`
	Redelivered     bool          `json:"redelivered,omitempty"`
	MessageID       text          `json:"message_id,omitzero"`
	Timestamp       *seconds      `json:"timestamp,omitempty"`
	Type            text          `json:"type,omitzero"`
	ContentType     text          `json:"content_type,omitzero"`
	ContentEncoding text          `json:"content_encoding,omitzero"`
	DeliveryMode    uint8         `json:"delivery_mode,omitempty"`
	Priority        uint8         `json:"priority,omitempty"`
	CorrelationID   text          `json:"correlation_id,omitzero"`
	ReplyTo         text          `json:"reply_to,omitzero"`
	Expiration      text          `json:"expiration,omitzero"`
	UserID          text          `json:"user_id,omitzero"`
	AppID           text          `json:"app_id,omitzero"`
	Headers         savedHeaders  `json:"headers,omitempty"`
	Body            *string       `json:"body,omitempty"`
	BodyBase64      *base64String `json:"body_base64,omitempty"`
	Digest          string        `json:"digest,omitempty"` // of all fields above, as saved; only for tasks
}

// base64String is a byte slice that JSON contains as a base64 string.
type base64String []byte

// MarshalJSON writes the message on one line. The line of a task's message has a digest, so that an edit can be
// detected.
func (m SavedMessage) MarshalJSON() ([]byte, error) {
	l := m.line()
	if m.isTask() {
		var err error
		if l.Digest, err = l.digest(); err != nil {
			return nil, err
		}
	}
	return marshal(l)
}

func (m SavedMessage) isTask() bool {
	_, task := m.Message.Headers[header.Version]
	return task
}

// digest returns the digest of a line whose Digest is empty.
func (l savedLine) digest() (string, error) {
	data, err := marshal(l)
	sum := sha256.Sum256(data)
	return base64.RawURLEncoding.EncodeToString(sum[:12]), err
}

// line returns the JSON form of a message, without a digest.
func (m SavedMessage) line() savedLine {
	d := &m.Message
	l := savedLine{
		Queue: text(m.Queue), Exchange: text(d.Exchange), RoutingKey: text(d.RoutingKey), Redelivered: d.Redelivered,
		MessageID: text(d.MessageId), Type: text(d.Type), ContentType: text(d.ContentType), ContentEncoding: text(d.ContentEncoding),
		DeliveryMode: d.DeliveryMode, Priority: d.Priority, CorrelationID: text(d.CorrelationId), ReplyTo: text(d.ReplyTo),
		Expiration: text(d.Expiration), UserID: text(d.UserId), AppID: text(d.AppId), Headers: savedHeaders(d.Headers),
	}
	if !m.Saved.IsZero() {
		l.Saved = new(m.Saved.UTC().Truncate(time.Millisecond))
	}
	if !d.Timestamp.IsZero() {
		l.Timestamp = &seconds{d.Timestamp}
	}
	if isText(d.Body) {
		l.Body = new(string(d.Body))
	} else {
		l.BodyBase64 = new(base64String(d.Body))
	}
	return l
}

// isText reports whether a body is saved as text, which means that an editor can display it.
func isText(body []byte) bool {
	return utf8.Valid(body) && !bytes.ContainsFunc(body, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' })
}

// UnmarshalJSON reads a line that MarshalJSON has written and that may have been edited since. It requires queue and
// exactly one of body and body_base64, and rejects unknown names.
func (m *SavedMessage) UnmarshalJSON(data []byte) error {
	var l savedLine
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field == "body" {
			return fmt.Errorf("\"body\" is a JSON %s; expected a string, such as jq's tojson returns", wrong.Value)
		}
		return err
	}
	switch {
	case l.Queue == "":
		return errors.New(`no "queue"; expected the queue that the message was taken from`)
	case (l.Body == nil) == (l.BodyBase64 == nil):
		return errors.New(`expected exactly one of "body" (a string) and "body_base64"`)
	}
	*m = SavedMessage{Queue: string(l.Queue), Message: amqp.Delivery{
		Exchange: string(l.Exchange), RoutingKey: string(l.RoutingKey), Redelivered: l.Redelivered,
		MessageId: string(l.MessageID), Type: string(l.Type), ContentType: string(l.ContentType), ContentEncoding: string(l.ContentEncoding),
		DeliveryMode: l.DeliveryMode, Priority: l.Priority, CorrelationId: string(l.CorrelationID), ReplyTo: string(l.ReplyTo),
		Expiration: string(l.Expiration), UserId: string(l.UserID), AppId: string(l.AppID), Headers: amqp.Table(l.Headers),
	}}
	if l.Saved != nil {
		m.Saved = *l.Saved
	}
	if l.Timestamp != nil {
		m.Message.Timestamp = l.Timestamp.Time
	}
	if l.Body != nil {
		m.Message.Body = []byte(*l.Body)
	} else {
		m.Message.Body = *l.BodyBase64
	}
	digest, err := m.line().digest()
	m.edited = m.isTask() && digest != l.Digest
	return err
}

// marshal works like json.Marshal, but does not escape HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// maxSavedLine limits the length of a line in bytes. RabbitMQ accepts bodies of up to 512 MiB, which fit into a line
// even as base64. Its default limit is 16 or 128 MiB, depending on the version.
const maxSavedLine = 1 << 30

// SavedIn returns the messages in a file that a SaveFile has written. Each iteration opens the file again and reads it
// line by line. Blank lines are skipped. At the first line that is not a message, the iteration stops with an error
// that contains the line number.
func SavedIn(path string) iter.Seq2[SavedMessage, error] {
	return func(yield func(SavedMessage, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(SavedMessage{}, err)
			return
		}
		defer func() { _ = f.Close() }()
		in := bufio.NewReaderSize(f, 1<<20)
		for line := 1; ; line++ {
			m, err := readSaved(in)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(SavedMessage{}, &savedError{path, line, err})
				return
			}
			m.Line = line
			if m.Queue != "" && !yield(m, nil) {
				return
			}
		}
	}
}

// savedError is returned for an invalid line in a file of messages.
type savedError struct {
	path string
	line int
	err  error
}

func (e *savedError) Error() string { return fmt.Sprintf("%s:%d: %v", e.path, e.line, e.err) }

// Unwrap returns the error without the path and the line number.
func (e *savedError) Unwrap() error { return e.err }

// readSaved reads a line. For a blank line it returns a message without a queue.
func readSaved(in *bufio.Reader) (m SavedMessage, err error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil, err == io.EOF && len(line) > 0:
		case errors.Is(err, bufio.ErrBufferFull) && len(line) <= maxSavedLine:
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			return m, fmt.Errorf("the line has more than %d MiB; expected a message in JSON", maxSavedLine>>20)
		default:
			return m, err
		}
		break
	}
	whole := line[len(line)-1] == '\n'
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return m, nil
	}
	err = json.Unmarshal(line, &m)
	if err != nil && !whole {
		err = fmt.Errorf("the line is truncated: %w; the message is still in its queue, because messages are removed only after their line is complete, so delete the line from the file", err)
	}
	return m, err
}

// SaveFile is a new file of messages, one on each line, for RequeueOptions.Save. The zero value is not usable; use
// CreateSaveFile.
type SaveFile struct {
	mu      sync.Mutex
	f       *os.File
	path    string
	size    int64 // how many bytes are safely on disk
	written int
	broken  error // why nothing more can be written
}

// CreateSaveFile creates a file that only its owner may read. It never overwrites a file: if the path exists, the error
// wraps fs.ErrExist.
func CreateSaveFile(path string) (*SaveFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return nil, err
	}
	return &SaveFile{f: f, path: path}, nil
}

// syncFolder syncs a directory, so that a new file name in it survives a crash.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" { // Windows cannot open a directory for syncing
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Save appends messages to the file and returns nil once they are safely on disk. After an error, none of the messages
// are in the file, unless truncating it failed as well, which the error then says. Every later call returns an error.
func (s *SaveFile) Save(list []SavedMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	n, err := s.append(list)
	if err == nil {
		s.size += n
		s.written += len(list)
		return nil
	}
	s.broken = fmt.Errorf("writing %s: %w", s.path, err)
	if err := s.f.Truncate(s.size); err != nil {
		s.broken = fmt.Errorf("%w; the file's last line may be truncated: %w", s.broken, err)
	}
	return s.broken
}

// append writes messages and returns their size in bytes.
func (s *SaveFile) append(list []SavedMessage) (n int64, err error) {
	out := bufio.NewWriterSize(s.f, 1<<20)
	for _, m := range list {
		line, err := m.MarshalJSON()
		if err == nil && len(line) >= maxSavedLine {
			err = fmt.Errorf("the message has more than %d MiB in JSON", maxSavedLine>>20)
		}
		if err != nil {
			return 0, fmt.Errorf("message %q: %w", m.Message.MessageId, err)
		}
		_, _ = out.Write(append(line, '\n')) // ignore the error: Flush returns it too
		n += int64(len(line)) + 1
	}
	if err := out.Flush(); err != nil {
		return n, err
	}
	return n, s.f.Sync()
}

// Written returns how many messages are in the file.
func (s *SaveFile) Written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written
}

// Close closes the file, and removes it if it contains no messages.
func (s *SaveFile) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.f.Close()
	if s.written == 0 {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}
