package sqldb

import (
	"fmt"
	"strings"
)

// sharable lists the first words of statements for which no database commits or rolls back a transaction, and whose
// effect on the session ends with the statement.
var sharable = map[string]bool{
	"SELECT": true, "INSERT": true, "UPDATE": true, "DELETE": true, "WITH": true, "REPLACE": true, "MERGE": true, "VALUES": true,
	"COPY": true, "NOTIFY": true, "SAVEPOINT": true, "RELEASE": true,
}

// CheckSharable returns an error that wraps ErrLent unless the query is a single statement that certainly leaves the
// transaction open. Everything that it does not recognise is refused, because in MySQL many statements commit
// implicitly (CREATE TABLE, LOCK TABLES, SET autocommit), and procedures may commit too. It does not parse string
// literals, so it treats any semicolon except one at the end as a separator of statements.
func CheckSharable(query string) error {
	if word, rest := firstWord(query); !strings.Contains(strings.TrimRight(query, "; \t\r\n"), ";") &&
		(sharable[word] || word == "ROLLBACK" && toSavepoint(rest)) {
		return nil
	}
	const most = 60
	shown := strings.Join(strings.Fields(query), " ")
	if len(shown) > most {
		shown = strings.ToValidUTF8(shown[:most], "") + "…"
	}
	return fmt.Errorf("%w; the statement %q may end the transaction, so it runs only when its message is handled alone", ErrLent, shown)
}

// toSavepoint reports whether the text that follows ROLLBACK names a savepoint.
func toSavepoint(rest string) bool {
	words := strings.Fields(strings.ToUpper(rest))
	if len(words) > 0 && (words[0] == "WORK" || words[0] == "TRANSACTION") {
		words = words[1:]
	}
	return len(words) > 1 && words[0] == "TO"
}

// firstWord returns the first word of a statement, in capitals, and the text after the word. It skips comments and
// opening parentheses. It returns no word after a comment that MySQL executes (/*!), or after a nested comment, because
// PostgreSQL ends such a comment later than other databases do.
func firstWord(query string) (word, rest string) {
	for {
		query = strings.TrimLeft(query, " \t\r\n(")
		switch {
		case strings.HasPrefix(query, "--"):
			_, query, _ = strings.Cut(query, "\n")
		case strings.HasPrefix(query, "/*"):
			comment, after, _ := strings.Cut(query[2:], "*/")
			if strings.HasPrefix(comment, "!") || strings.HasPrefix(comment, "M!") || strings.Contains(comment, "/*") {
				return "", ""
			}
			query = after
		default:
			end := strings.IndexFunc(query, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
			if end < 0 {
				end = len(query)
			}
			return strings.ToUpper(query[:end]), query[end:]
		}
	}
}

// mayHaveEnded reports whether the database may have rolled back the whole transaction because a statement failed with
// err. PostgreSQL does not do that, but refuses to commit the transaction. MySQL does it after a deadlock, and SQLite
// after a conflict with a constraint or a trigger that is declared with ROLLBACK.
func mayHaveEnded(err error) bool {
	switch {
	case err == nil, sqlState(err) != "":
		return false
	case sqliteCode(err) != 0:
		return true
	}
	return !Refused(err) && !Duplicate(err)
}
