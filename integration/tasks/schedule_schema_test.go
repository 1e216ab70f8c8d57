package tasks_test

import (
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// The table rejects rows that a program writes incorrectly with plain SQL, and the error names the constraint.
func TestScheduleTableRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 128) // 256 bytes
	eachDatabase(t, func(t *testing.T, db businessDB) {
		newStore(t, db, nil, schedule.Config{})
		insert := func(id, column, value any) error {
			columns, marks, args := "id, due_at", "?, ?", []any{id, int64(1)}
			if column == "due_at" {
				args[1] = value
			} else if column != "" {
				columns, marks, args = columns+", "+column.(string), marks+", ?", append(args, value)
			}
			if column != "exchange" && column != "queue" {
				columns, marks = columns+", queue", marks+", 'q'"
			}
			_, err := db.ExecContext(t.Context(), db.bind("INSERT INTO rabbitdelay_tasks ("+columns+") VALUES ("+marks+")"), args...)
			return err
		}
		for _, bad := range []struct {
			id, column string
			value      any
			rule       string
		}{
			{"", "", nil, "id_of_1_to_255_bytes"},
			{long, "", nil, "id_of_1_to_255_bytes"},
			{"x ", "", nil, "id_without_space_at_end"},
			{"x", "queue", long, "names_up_to_255_bytes"},
			{"x", "exchange", long, "names_up_to_255_bytes"},
			{"x", "content_type", long, "names_up_to_255_bytes"},
			{"x", "queue", "", "one_destination"},
			{"x", "routing_key", "k", "one_destination"},
			{"x", "due_at", int64(-1), "due_at_in_milliseconds"},
			{"x", "due_at", int64(1795352749), "due_at_in_milliseconds"},         // seconds
			{"x", "due_at", int64(1795352749_000_000), "due_at_in_milliseconds"}, // microseconds
			{"x", "attempts", -1, "counts"},
			{"x", "version", 0, "counts"},
			{"x", "status", "done", "finished_at_when_finished"},
			{"x", "headers", "[1]", "headers_a_json_object"},
			{"x", "headers", `"{}"`, "headers_a_json_object"},
			{"x", "headers", "no", ""}, // PostgreSQL cannot read it as JSON at all
			{"x", "due_at", "soon", ""},
			{"x", "attempts", "some", ""},
			{"x", "status", "pending ", ""},
		} {
			if err := insert(bad.id, bad.column, bad.value); err == nil || !strings.Contains(err.Error(), bad.rule) {
				t.Errorf("id %.9q, %s = %v: got error %v, want a violation of the constraint %q", bad.id, bad.column, bad.value, err, bad.rule)
			}
		}
		for i, good := range []struct {
			column string
			value  any
		}{
			{"exchange", long[2:]}, {"queue", long[2:]}, {"headers", " \n{\"a\": \"b\"} "}, {"headers", nil},
			{"due_at", int64(0)}, {"due_at", int64(253402300799999)}, {"body", "text"}, {"body", []byte{0, 255}},
		} {
			if err := insert(strings.Repeat("é", i)+"x", good.column, good.value); err != nil {
				t.Errorf("%s = %v: got error %v, want nil", good.column, good.value, err)
			}
		}
		if db.dialect != schedule.SQLite {
			return
		}
		// SQLite has dynamic types. The other databases reject these values without a constraint.
		for column, value := range map[string]string{
			"due_at": "1.5", "queue": "x'00'", "body": "7", "attempts": "'some'", "headers": "x'7b7d'", "resend_at": "'never'", "claimed_until": "0.5",
		} {
			set := "UPDATE rabbitdelay_tasks SET " + column + " = " + value + " WHERE queue = 'q'"
			if _, err := db.ExecContext(t.Context(), set); err == nil || !strings.Contains(err.Error(), "typeof("+column+")") {
				t.Errorf("%s: got error %v, want a violation of the constraint on typeof(%s)", set, err, column)
			}
		}
	})
}
