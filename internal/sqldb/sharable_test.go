package sqldb

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckSharable(t *testing.T) {
	for _, statement := range []string{
		"INSERT INTO t VALUES (1)", "select 1;", " \n(SELECT 1) UNION (SELECT 2) ; ", "WITH x AS (SELECT 1) UPDATE t SET a = 1",
		"-- name: CreateOrder :exec\nINSERT INTO t VALUES ($1)", "/* trace */ /* id */ DELETE FROM t", "VALUES(1)",
		"SAVEPOINT a", "RELEASE SAVEPOINT a", "rollback to a", "ROLLBACK TO SAVEPOINT a", "ROLLBACK TRANSACTION TO SAVEPOINT a", "ROLLBACK\nWORK TO a;",
	} {
		if err := CheckSharable(statement); err != nil {
			t.Errorf("CheckSharable(%q): got %v, want nil", statement, err)
		}
	}
	for _, statement := range []string{
		"", ";", "COMMIT", "commit", " Commit;", "END", "ROLLBACK", "ROLLBACK WORK", "ROLLBACK AND CHAIN", "ROLLBACK -- TO a", "ROLLBACK /* TO a */", "ABORT", "BEGIN",
		"START TRANSACTION", "PREPARE TRANSACTION 'x'", "SELECT 1; COMMIT", "INSERT INTO t VALUES (1);COMMIT;", "-- SELECT\nCOMMIT", "--", "/* SELECT", "/* SELECT */ COMMIT",
		"/*! COMMIT */", "/*!50000 COMMIT*/ SELECT 1", "/*M! COMMIT */", "/* a /* b */ SELECT 1 */ COMMIT", "# SELECT\nCOMMIT", "(COMMIT",
		"CREATE TABLE x (a int)", "TRUNCATE t", "LOCK TABLES t WRITE", "SET autocommit = 1", "SET LOCAL lock_timeout = 1", "CALL p()", "DO $$ BEGIN COMMIT; END $$", "EXECUTE s", "XA END 'x'",
	} {
		if err := CheckSharable(statement); !errors.Is(err, ErrLent) {
			t.Errorf("CheckSharable(%q): got %v, want ErrLent", statement, err)
		}
	}
	if err := CheckSharable("SET " + strings.Repeat("é", 999)); len(err.Error()) > 400 {
		t.Errorf("CheckSharable of a long statement: got an error of %d bytes, want at most 400", len(err.Error()))
	}
}
