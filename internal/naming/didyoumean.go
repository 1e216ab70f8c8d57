package naming

import (
	"slices"
	"strings"
)

// DidYouMean returns "; did you mean a or b?" with up to three candidates that word may be a misspelling of. It
// returns "" if there are none.
func DidYouMean(word string, candidates []string) string {
	names := meant(word, candidates)
	if len(names) == 0 {
		return ""
	}
	last := len(names) - 1
	text := names[last]
	if last > 0 {
		text = strings.Join(names[:last], ", ") + " or " + text
	}
	return "; did you mean " + text + "?"
}

const maxMeant = 3

// meant returns the candidates that the user may have meant by word, most similar first. They differ from word in a few
// letters, or begin with it.
func meant(word string, candidates []string) []string {
	type match struct {
		name     string
		distance int
	}
	var found []match
	allowed := min(len([]rune(word))/3, 3) // maximum number of wrong letters
	for _, name := range candidates {
		if name == word || name == "" {
			continue
		}
		d := distance(strings.ToLower(word), strings.ToLower(name))
		begins := len(word) >= 3 && strings.HasPrefix(strings.ToLower(name), strings.ToLower(word))
		if d <= allowed || begins {
			found = append(found, match{name, d})
		}
	}
	slices.SortStableFunc(found, func(a, b match) int { return a.distance - b.distance })
	var names []string
	for _, m := range found {
		if !slices.Contains(names, m.name) && len(names) < maxMeant {
			names = append(names, m.name)
		}
	}
	return names
}

// distance returns the number of letters to insert, delete or replace, and of adjacent letters to swap, to turn a
// into b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			change := 1
			if x[i-1] == y[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}
