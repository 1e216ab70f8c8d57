package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

// exactNames makes field names case-sensitive, so that "QUEUE" is rejected like any other unknown field. encoding/json
// alone would accept it for "queue". In huma, this is a global setting.
var exactNames = sync.OnceFunc(func() { huma.ValidateStrictCasing = true })

// decode decodes JSON. It rejects text in which encoding/json would replace characters with U+FFFD, because different
// ids could become equal, and objects with two values for a name, of which encoding/json would drop one. Its errors for
// a value of the wrong type do not name Go types.
func decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return errors.New("expected UTF-8, which JSON requires; send a body with other bytes as base64, in body_base64")
	}
	if at := loneSurrogate(data); at != "" {
		return fmt.Errorf("%s is only half of a UTF-16 surrogate pair; expected both halves", at)
	}
	if name, twice := repeatedName(data); twice {
		return fmt.Errorf("%.100q occurs twice in one object; expected each name once", name)
	}
	err := json.Unmarshal(data, v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		want := "a value of another type"
		if wrong.Type != nil {
			want = jsonType(wrong.Type.Kind().String())
		}
		names := slices.DeleteFunc(strings.Split(wrong.Field, "."), func(name string) bool { return name == "" || unicode.IsUpper(rune(name[0])) }) // Go's embedded structs
		return fmt.Errorf("%s: expected %s, got %s", strings.Join(names, "."), want, wrong.Value)
	}
	return err
}

// repeatedName returns a name that an object in data contains twice. It does not report syntax errors.
func repeatedName(data []byte) (name string, twice bool) {
	var names []map[string]bool // the names seen in each object around the current token; nil for an array
	isName := false
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		t, err := d.Token()
		if err != nil {
			return "", false
		}
		switch t {
		case json.Delim('{'):
			names = append(names, map[string]bool{})
		case json.Delim('['):
			names = append(names, nil)
		case json.Delim('}'), json.Delim(']'):
			names = names[:len(names)-1]
		default:
			if isName {
				name, _ = t.(string)
				if names[len(names)-1][name] {
					return name, true
				}
				names[len(names)-1][name] = true
				isName = false
				continue
			}
		}
		isName = len(names) > 0 && names[len(names)-1] != nil
	}
}

// jsonType returns the JSON name of a Go kind.
func jsonType(kind string) string {
	switch kind {
	case "int", "int64", "int32", "uint8", "uint16", "uint32", "uint64":
		return "an integer"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "string":
		return "a string"
	case "slice", "array":
		return "an array"
	}
	return "an object"
}

// loneSurrogate returns the first escape of a UTF-16 surrogate, such as \ud800, whose other half is missing. It returns
// an empty string if there is none.
func loneSurrogate(data []byte) string {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		first, ok := escaped(data[i:])
		if !ok || !utf16.IsSurrogate(first) {
			i++ // skip the escaped character
			continue
		}
		var second rune
		if len(data) > i+6 {
			second, _ = escaped(data[i+6:])
		}
		if utf16.DecodeRune(first, second) == utf8.RuneError {
			return string(data[i : i+6])
		}
		i += 11
	}
	return ""
}

// escaped decodes an escape such as \u00e9.
func escaped(data []byte) (rune, bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(data[2:6]), 16, 32)
	return rune(n), err == nil
}
