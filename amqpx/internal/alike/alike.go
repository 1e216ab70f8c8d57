// Package alike normalises the texts of errors, so that errors of one kind can be grouped and chosen.
package alike

import (
	"cmp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Most is how many bytes of an error's text decide what it is like.
const Most = 1 << 10

// Text returns the text of an error without what differs between two messages that failed of the same: numbers,
// with the unit of time or the colons and points between them, and ids become #, quoted parts "…", and white space
// one space, because fields of forms hold one line. Only the first 1,024 bytes count.
//
//	order 42 was not found       order # was not found
//	dial tcp 10.0.0.7:5432: …    dial tcp #: …
//	no such user: "Ann" (3f2a9c1e-…)  no such user: … (#)
func Text(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), Most)], "")
	var out []byte
	after := ' ' // the character before
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		instead := ""
		switch {
		case closing[r] != 0 && !joins(after): // not the one in don't
			if end := quoted(text, r); end > 0 {
				n, instead = end, "…"
			}
		case isWord(r):
			if n = strings.IndexFunc(text, func(r rune) bool { return !isWord(r) }); n < 0 {
				n = len(text)
			}
			if isUUID(text) {
				n = uuidLength
			}
			instead = wordAlike(text[:n])
		}
		piece := cmp.Or(instead, text[:n])
		if end := len(out); piece[0] == '#' && end > 1 && strings.IndexByte(".:,-/", out[end-1]) >= 0 && out[end-2] == '#' {
			out, piece = out[:end-1], piece[1:] // numbers with a character between them are one
		}
		out = append(out, piece...)
		after, _ = utf8.DecodeLastRuneInString(text[:n])
		text = text[n:]
	}
	line := strings.Join(strings.Fields(string(out)), " ")
	return strings.TrimSpace(strings.ToValidUTF8(line[:min(len(line), Most)], ""))
}

// Pieces returns what every text contains, in this order, that is like one: the parts of the latter between what stands
// for something else. A database can leave out most other texts by them; it returns at most the first few.
func Pieces(like string) []string {
	const most = 8
	list := strings.FieldsFunc(like, func(r rune) bool { return r == '#' || r == '…' || unicode.IsSpace(r) })
	return list[:min(len(list), most)]
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// closing quotes by their opening ones.
var closing = map[rune]rune{'"': '"', '\'': '\'', '`': '`', '“': '”', '‘': '’', '«': '»', '„': '“'}

// joins reports whether a quote beside the character is a part of a word, or of what stands for one.
func joins(r rune) bool { return isWord(r) || r == '#' }

// quoted returns how long the quoted part is at the beginning of a text; 0 if it has no end.
func quoted(text string, open rune) int {
	escaped := false
	for i, r := range text {
		next, _ := utf8.DecodeRuneInString(text[i+utf8.RuneLen(r):])
		switch {
		case i == 0:
		case escaped:
			escaped = false
		case r == '\\':
			escaped = true
		case r == closing[open] && (r != '\'' || !joins(next)):
			return i + utf8.RuneLen(r)
		}
	}
	return 0
}

const uuidLength = 36

func isUUID(text string) bool {
	if len(text) < uuidLength {
		return false
	}
	for i := range uuidLength {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (text[i] == '-') || !dash && !isHex(text[i]) {
			return false
		}
	}
	return true
}

func isHex(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) >= 0 }

// minID is how long a word with digits is at least that may be an id.
const minID = 8

// wordAlike returns what stands for a word; empty for the word itself.
func wordAlike(word string) string {
	var b strings.Builder // the word with a # for each run of digits
	runs, hex, in := 0, true, false
	for _, r := range word {
		digit := unicode.IsDigit(r)
		switch {
		case !digit:
			b.WriteRune(r)
		case !in:
			b.WriteByte('#')
			runs++
		}
		in = digit
		hex = hex && r < utf8.RuneSelf && isHex(byte(r))
	}
	switch {
	case runs == 0:
		return ""
	case isUUID(word), isSpan(word), len(word) >= minID && (hex || runs > 1):
		return "#"
	}
	return b.String()
}

// isSpan reports whether a word is a number, or several with units of time, such as 1m30s.
func isSpan(word string) bool {
	for word != "" {
		rest := strings.TrimLeftFunc(word, unicode.IsDigit)
		if len(rest) == len(word) {
			return false
		}
		word = rest
		for _, unit := range []string{"ns", "us", "µs", "ms", "s", "m", "h", "d"} {
			if cut, ok := strings.CutPrefix(word, unit); ok && (cut == "" || unicode.IsDigit(rune(cut[0]))) {
				word = cut
				break
			}
		}
	}
	return true
}
