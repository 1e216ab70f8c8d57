// Package alike normalises the texts of errors, so that errors of one kind can be grouped and selected.
package alike

import (
	"cmp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Most is the number of bytes of an error's text that are compared.
const Most = 1 << 10

// Text returns the text of an error without the parts that differ between two messages that failed for the same reason.
// Numbers and ids become #. A number includes its unit of time, and numbers that are joined by dots, colons, commas,
// hyphens or slashes become a single #. Quoted parts become "…", and white space becomes one space, because the text is
// used in filters, whose form fields have a single line. Only the first 1,024 bytes are used.
//
//	order 42 was not found       order # was not found
//	dial tcp 10.0.0.7:5432: …    dial tcp #: …
//	no such user: "Ann" (3f2a9c1e-…)  no such user: … (#)
func Text(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), Most)], "")
	var out []byte
	after := ' ' // the previous character
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		instead := ""
		switch {
		case closing[r] != 0 && !joins(after): // an apostrophe within a word is not a quote
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
			out, piece = out[:end-1], piece[1:] // numbers with a separator between them count as one
		}
		out = append(out, piece...)
		after, _ = utf8.DecodeLastRuneInString(text[:n])
		text = text[n:]
	}
	line := strings.Join(strings.Fields(string(out)), " ")
	return strings.TrimSpace(strings.ToValidUTF8(line[:min(len(line), Most)], ""))
}

// Pieces returns substrings that occur, in this order, in every text whose normalised form is like. These are the parts
// of like between its placeholders and spaces. A database query can use them to exclude most other texts. At most the
// first few are returned.
func Pieces(like string) []string {
	const most = 8
	list := strings.FieldsFunc(like, func(r rune) bool { return r == '#' || r == '…' || unicode.IsSpace(r) })
	return list[:min(len(list), most)]
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// closing maps opening quotes to closing quotes.
var closing = map[rune]rune{'"': '"', '\'': '\'', '`': '`', '“': '”', '‘': '’', '«': '»', '„': '“'}

// joins reports whether a quote next to the character is part of a word, or of a placeholder for one.
func joins(r rune) bool { return isWord(r) || r == '#' }

// quoted returns the length of the quoted part at the beginning of a text, or 0 if there is no closing quote.
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

// minID is the minimum length, in bytes, of a word that is replaced as an id. In a shorter word, only the digits are
// replaced.
const minID = 8

// wordAlike returns the replacement for a word, or "" if the word is kept.
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
