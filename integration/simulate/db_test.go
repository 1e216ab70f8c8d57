package simulate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver named sqlite
)

// database is a database server in a synctest bubble. It has one SQLite connection in memory, which the sessions of all
// processes use in turn. A transaction keeps its turn until it ends, like SQLite's single writer, so transactions never
// overlap, and conflicts between concurrent transactions, as on PostgreSQL, are not simulated. Statements take virtual
// time.
type database struct {
	turn    chan struct{} // holds an element while no session works
	latency time.Duration // the longest time that a statement takes

	mu       sync.Mutex
	raw      conn
	rng      *rand.Rand
	failing  int
	refused  int           // the number of statements that were refused while the database was unavailable
	hung     chan struct{} // closed when the database answers again; nil while it answers
	breaks   int           // the number of commits whose answers are lost
	applied  bool          // whether those commits take effect
	sessions []*session
}

// conn has the methods of modernc.org/sqlite's connections that the simulation uses.
type conn interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

// sqlite is the SQLite driver. Packages recognise the dialect by its type.
var sqlite = func() driver.Driver {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	return db.Driver()
}()

// link is a process's access to the database.
type link struct {
	d    *database
	dead chan struct{} // closed when the process is killed
}

var (
	errAway = &awayError{}
	errGone = errors.New("the process was killed")
)

// awayError is returned on a connection that the database has closed.
type awayError struct{}

func (*awayError) Error() string { return "connection to the database lost" }
func (*awayError) Unwrap() error { return io.ErrUnexpectedEOF }

func newDatabase(latency time.Duration, seed uint64) (*database, error) {
	d := &database{turn: make(chan struct{}, 1), latency: latency, rng: rand.New(rand.NewPCG(seed, 1))}
	c, err := sqlite.Open(":memory:")
	if err != nil {
		return nil, err
	}
	d.raw = c.(conn)
	d.turn <- struct{}{}
	return d, nil
}

func (d *database) close() error { return d.raw.Close() }

// open returns a database handle for a new process.
func (d *database) open() (*sql.DB, *link) {
	l := &link{d, make(chan struct{})}
	return sql.OpenDB(l), l
}

func (l *link) Driver() driver.Driver { return sqlite }

func (l *link) Connect(ctx context.Context) (driver.Conn, error) {
	s := &session{link: l}
	if err := s.answer(ctx); err != nil {
		return nil, err
	}
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.sessions = append(l.d.sessions, s)
	return s, nil
}

// kill ends all sessions of a process, and rolls back their uncommitted changes.
func (l *link) kill() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	close(l.dead)
	for _, s := range l.d.sessions {
		if s.link == l {
			s.undo()
		}
	}
}

// fail breaks all sessions and makes all statements fail until the function that it returns is called.
func (d *database) fail() (undo func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing++
	for _, s := range d.sessions {
		s.undo()
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.failing--
	}
}

// asked returns the number of statements that were refused.
func (d *database) asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// hang leaves all statements unanswered until the function that it returns is called.
func (d *database) hang() (undo func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		return func() {}
	}
	hung := make(chan struct{})
	d.hung = hung
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hung = nil
		close(hung)
	}
}

// breakCommits loses the answers to the next n commits. If applied is true, the commits take effect.
func (d *database) breakCommits(n int, applied bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.breaks, d.applied = n, applied
}

// session is a connection to the database. Its waits end when their context is cancelled, because database/sql holds a
// mutex during them, and virtual time does not pass in a bubble while a goroutine waits for a mutex.
type session struct {
	*link

	ctx   context.Context // the transaction's context
	inTx  bool
	ended bool
}

// answer waits as long as the network and the database need before a statement starts.
func (s *session) answer(ctx context.Context) error {
	s.d.mu.Lock()
	hung, pause := s.d.hung, time.Duration(0)
	if s.d.latency > 0 {
		pause = time.Duration(s.d.rng.Int64N(int64(s.d.latency)))
	}
	if s.d.failing > 0 {
		pause += time.Millisecond // time must also pass for callers that retry without a pause
	}
	s.d.mu.Unlock()
	if hung == nil {
		closed := make(chan struct{})
		close(closed)
		hung = closed
	}
	for _, c := range []<-chan struct{}{hung, after(pause)} {
		select {
		case <-c:
		case <-ctx.Done():
			s.end()
			return ctx.Err()
		case <-s.dead:
			return errGone
		}
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.d.failing > 0 {
		s.d.refused++
	}
	if s.ended || s.d.failing > 0 {
		s.ended = true
		return errAway
	}
	return nil
}

// after returns a channel that is closed, or has an element, when the pause has passed.
func after(pause time.Duration) <-chan struct{} {
	c := make(chan struct{})
	if pause == 0 {
		close(c)
	} else {
		time.AfterFunc(pause, func() { close(c) })
	}
	return c
}

// end closes a session whose statement was abandoned.
func (s *session) end() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.undo()
}

// undo rolls back the transaction and ends the session. The caller holds the database's lock.
func (s *session) undo() {
	s.ended = true
	if s.inTx {
		s.run("ROLLBACK")
		s.release()
	}
}

// run executes a statement, and panics if it fails.
func (s *session) run(query string) {
	if _, err := s.d.raw.ExecContext(context.Background(), query, nil); err != nil {
		panic(query + ": " + err.Error())
	}
}

func (s *session) release() {
	s.inTx = false
	s.d.turn <- struct{}{}
}

// take waits for its turn, unless the session already has it.
func (s *session) take(ctx context.Context) (mine bool, err error) {
	if err := s.answer(ctx); err != nil || s.inTx {
		return false, err
	}
	select {
	case <-s.d.turn:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-s.dead:
		return false, errGone
	}
}

// do waits for the session's turn and runs f.
func (s *session) do(ctx context.Context, f func() error) error {
	mine, err := s.take(ctx)
	if err != nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if mine {
		defer func() { s.d.turn <- struct{}{} }()
	} else if !s.inTx {
		return errAway // the transaction was rolled back in the meantime
	}
	select {
	case <-s.dead:
		return errGone
	default:
		return f()
	}
}

func (s *session) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	err = s.do(ctx, func() error {
		r, err = s.d.raw.ExecContext(context.WithoutCancel(ctx), query, args)
		return err
	})
	return r, err
}

func (s *session) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Rows, err error) {
	err = s.do(ctx, func() error {
		found, err := s.d.raw.QueryContext(context.WithoutCancel(ctx), query, args)
		if err != nil {
			return err
		}
		r, err = readAll(found)
		return err
	})
	return r, err
}

func (s *session) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	if _, err := s.take(ctx); err != nil {
		return nil, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.run("BEGIN IMMEDIATE")
	s.inTx, s.ctx = true, ctx
	if s.ended {
		s.undo()
		return nil, errAway
	}
	return s, nil
}

func (s *session) Commit() error {
	if err := s.answer(s.ctx); err != nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if !s.inTx {
		return errAway
	}
	if s.d.breaks > 0 {
		if s.d.breaks--; !s.d.applied {
			s.undo()
			return errAway
		}
		s.ended = true
	}
	s.run("COMMIT")
	s.release()
	if s.ended {
		return errAway
	}
	return nil
}

func (s *session) Rollback() error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.inTx {
		s.run("ROLLBACK")
		s.release()
	}
	return nil
}

func (s *session) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("statements are not prepared here")
}
func (s *session) Begin() (driver.Tx, error) {
	return s.BeginTx(context.Background(), driver.TxOptions{})
}

// IsValid reports whether the session may be returned to the pool, which an ended session may not.
func (s *session) IsValid() bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return !s.ended
}

func (s *session) Close() error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.undo()
	s.d.sessions = slices.DeleteFunc(s.d.sessions, func(x *session) bool { return x == s })
	return nil
}

// result is the result of a query, in memory.
type result struct {
	columns []string
	rows    [][]driver.Value
}

func readAll(found driver.Rows) (*result, error) {
	defer func() { _ = found.Close() }()
	r := &result{columns: found.Columns()}
	for {
		row := make([]driver.Value, len(r.columns))
		if err := found.Next(row); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return nil, err
		}
		for i, v := range row {
			if b, ok := v.([]byte); ok {
				row[i] = slices.Clone(b)
			}
		}
		r.rows = append(r.rows, row)
	}
}

func (r *result) Columns() []string { return r.columns }
func (r *result) Close() error      { return nil }
func (r *result) Next(row []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(row, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}
