package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// File is the content of a users file.
type File struct {
	// SessionKey signs sessions. It is 32 bytes in base64. Anyone who has it can forge sessions.
	SessionKey string  `yaml:"session_key"`
	Users      []User  `yaml:"users"`
	Tokens     []Token `yaml:"tokens,omitempty"`
}

// User is a person who logs in with the form.
type User struct {
	Name     string       `yaml:"name"`
	Role     service.Role `yaml:"role"`
	Password string       `yaml:"password"` // a bcrypt hash
}

// Token identifies a program, which sends it as "Authorization: Bearer".
type Token struct {
	Name   string       `yaml:"name"`
	Role   service.Role `yaml:"role"`
	SHA256 string       `yaml:"sha256"` // the hash of the token, in hexadecimal
}

const (
	// MinPassword and MaxPassword limit the length of a password in bytes. bcrypt accepts at most 72.
	MinPassword = 10
	MaxPassword = 72

	keyBytes  = 32
	tokenMark = "rdt_" // helps secret scanners to recognise a token
	maxName   = 64

	// tokenPrefix precedes the name of a token in the name of its caller.
	tokenPrefix = "token "
)

// Cost is the bcrypt cost of new passwords. Tests lower it.
var Cost = 12

// Read reads a users file. Because the file contains the key that signs sessions, Read rejects a file that other
// accounts can read, a file that its group or other accounts can write, and a file in a directory where its group or
// other accounts can replace it.
func Read(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := checkMode(path); err != nil {
		return nil, err
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func checkMode(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o026 != 0 {
		return fmt.Errorf("%s: mode %04o; expected a file that other accounts can neither read nor write, and that its group cannot write; run chmod g-w,o-rw %s", path, mode, path)
	}
	return checkFolder(path)
}

// checkFolder rejects a file in a directory that its group or other accounts can write, because they could replace the
// file. In a directory with the sticky bit, such as /tmp, they cannot. The root group has no exception, because in some
// containers programs run with it without being root.
func checkFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	if folder.Mode().Perm()&0o022 != 0 && folder.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("%s: its group or other accounts can replace this file, because the directory %s has mode %04o; run chmod go-w %[2]s", path, filepath.Dir(path), folder.Mode().Perm())
	}
	return nil
}

func parse(text []byte) (*File, error) {
	f := &File{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(f); err != nil {
		return nil, fmt.Errorf("expected session_key, users and tokens, as \"rabbitdelay users add\" writes them: %w", err)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) check() error {
	if key, err := base64.StdEncoding.DecodeString(f.SessionKey); err != nil || len(key) < keyBytes {
		return fmt.Errorf("session_key: expected at least %d bytes in base64", keyBytes)
	}
	names := map[string]bool{}
	for i, u := range f.Users {
		if err := checkUser(u.Name, u.Role); err != nil {
			return fmt.Errorf("users[%d]: %w", i, err)
		}
		if _, err := bcrypt.Cost([]byte(u.Password)); err != nil {
			return fmt.Errorf("users[%d].password: expected a bcrypt hash, which \"rabbitdelay users add\" writes", i)
		}
		if names[u.Name] {
			return fmt.Errorf("users[%d].name: %q occurs twice", i, u.Name)
		}
		names[u.Name] = true
	}
	clear(names)
	for i, t := range f.Tokens {
		if err := checkName(t.Name, t.Role); err != nil {
			return fmt.Errorf("tokens[%d]: %w", i, err)
		}
		if names[t.Name] {
			return fmt.Errorf("tokens[%d].name: %q occurs twice", i, t.Name)
		}
		names[t.Name] = true
		if sum, err := hex.DecodeString(t.SHA256); err != nil || len(sum) != sha256.Size {
			return fmt.Errorf("tokens[%d].sha256: expected 64 hexadecimal digits, which \"rabbitdelay users token\" writes", i)
		}
	}
	return nil
}

func checkName(name string, role service.Role) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("name: %q; expected 1 to %d bytes", name, maxName)
	}
	if strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return fmt.Errorf("name: %q; expected visible characters, and no space at either end", name)
	}
	if role != service.RoleViewer && role != service.RoleOperator {
		return fmt.Errorf("role: %q; expected viewer or operator", role)
	}
	return nil
}

// checkUser validates the name and role of a user. Because both users and tokens appear in the audit, their names must
// differ.
func checkUser(name string, role service.Role) error {
	if len(name) >= len(tokenPrefix) && strings.EqualFold(name[:len(tokenPrefix)], tokenPrefix) {
		return fmt.Errorf("name: %q; expected a name that does not begin with %q, which precedes the names of tokens", name, tokenPrefix)
	}
	return checkName(name, role)
}

// SetUser adds a user to a file, or changes the password and the role of an existing user. It creates a missing file.
func SetUser(path, name string, role service.Role, password []byte) (created bool, err error) {
	if err := checkUser(name, role); err != nil {
		return false, err
	}
	if len(password) < MinPassword || len(password) > MaxPassword {
		return false, fmt.Errorf("password: %d bytes; expected %d to %d", len(password), MinPassword, MaxPassword)
	}
	hash, err := bcrypt.GenerateFromPassword(password, Cost)
	if err != nil {
		return false, err
	}
	err = change(path, func(f *File) {
		u := User{Name: name, Role: role, Password: string(hash)}
		if i := slices.IndexFunc(f.Users, func(u User) bool { return u.Name == name }); i >= 0 {
			f.Users[i] = u
			return
		}
		f.Users, created = append(f.Users, u), true
	})
	return created, err
}

// NewToken adds a token to a file, or replaces the token with this name. The token cannot be shown again.
func NewToken(path, name string, role service.Role) (token string, err error) {
	if err := checkName(name, role); err != nil {
		return "", err
	}
	token = tokenMark + random(base64.RawURLEncoding)
	err = change(path, func(f *File) {
		t := Token{Name: name, Role: role, SHA256: sum(token)}
		if i := slices.IndexFunc(f.Tokens, func(t Token) bool { return t.Name == name }); i >= 0 {
			f.Tokens[i] = t
			return
		}
		f.Tokens = append(f.Tokens, t)
	})
	return token, err
}

// ErrNoUser means that there is neither a user nor a token with this name.
var ErrNoUser = errors.New("there is neither a user nor a token with that name")

// Remove removes the user and the token with this name from a file.
func Remove(path, name string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	removed := false
	err := change(path, func(f *File) {
		before := len(f.Users) + len(f.Tokens)
		f.Users = slices.DeleteFunc(f.Users, func(u User) bool { return u.Name == name })
		f.Tokens = slices.DeleteFunc(f.Tokens, func(t Token) bool { return t.Name == name })
		removed = len(f.Users)+len(f.Tokens) < before
	})
	if err == nil && !removed {
		err = ErrNoUser
	}
	return err
}

func random(e *base64.Encoding) string {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails
	return e.EncodeToString(key)
}

func sum(token string) string {
	s := sha256.Sum256([]byte(token))
	return hex.EncodeToString(s[:])
}

// change replaces a file atomically, and keeps its mode and owner. A reader sees either the old or the new content. A
// lock serialises the changes by several processes.
func change(path string, do func(*File)) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("locking %s: %w", filepath.Dir(path), err)
	}
	defer unlock()
	was, err := os.Stat(path)
	var f *File
	if errors.Is(err, fs.ErrNotExist) || err == nil && was.Size() == 0 {
		f, err = &File{SessionKey: random(base64.StdEncoding)}, checkFolder(path)
	} else if err == nil {
		f, err = Read(path)
	}
	if err != nil {
		return err
	}
	do(f)
	text, err := yaml.Marshal(f) //nolint:gosec // the file is meant to contain the key
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".users-*") // 0600
	if err != nil {
		return err
	}
	if was != nil {
		err = keep(tmp, was)
	}
	if err == nil {
		_, err = tmp.Write(text)
	}
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // after a rename there is nothing to remove
	}
	return err
}

// checkEvery is the interval at which a file is checked for changes.
const checkEvery = time.Second

// watched is a users file that is read again when it has changed.
type watched struct {
	path string
	warn func(error)

	mu    sync.Mutex
	f     *File
	seen  fs.FileInfo
	at    time.Time
	wrong error
}

// watch reads a users file for the first time. The result calls warn if a later version of the file is invalid or has
// no users.
func watch(path string, warn func(error)) (*watched, error) {
	w := &watched{path: path, warn: warn, at: time.Now()}
	var err error
	if w.seen, err = os.Stat(path); err != nil {
		return nil, err
	}
	if w.f, err = Read(path); err != nil {
		return nil, err
	}
	return w, nil
}

// now returns the content of the file, which is at most a second old. An empty or missing file has no users. If the
// file contains an error, now returns the last valid content.
func (w *watched) now() *File {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.at) < checkEvery {
		return w.f
	}
	w.at = time.Now()
	info, err := os.Stat(w.path)
	if err == nil && w.seen != nil && os.SameFile(info, w.seen) && info.ModTime().Equal(w.seen.ModTime()) && info.Size() == w.seen.Size() {
		return w.f
	}
	f := w.f
	if err == nil && info.Size() > 0 {
		f, err = Read(w.path)
	} else if err == nil || errors.Is(err, fs.ErrNotExist) {
		f, err = &File{}, nil
		if len(w.f.Users)+len(w.f.Tokens) > 0 {
			w.warn(errors.New("the file is empty or missing, so there are no users"))
		}
	}
	if err != nil {
		if w.wrong == nil || w.wrong.Error() != err.Error() {
			w.warn(err)
		}
		w.wrong = err
		return w.f
	}
	w.f, w.seen, w.wrong = f, info, nil
	return w.f
}
