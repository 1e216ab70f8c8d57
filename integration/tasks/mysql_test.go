package tasks_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// If another transaction scheduled a task after this transaction took its snapshot, scheduling the same task reports
// that it exists, although a plain SELECT does not see it.
func TestScheduleExistsAfterSnapshot(t *testing.T) {
	t.Parallel()
	eachMySQL(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		due := time.Now().Add(time.Hour)
		for _, tasks := range [][]schedule.Task{{orderTask("a", due)}, {orderTask("b", due), orderTask("c", due)}} {
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			suite.MustSucceed(t, err)
			var n int
			suite.MustSucceed(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_tasks").Scan(&n))
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, tasks[0]))
			err = s.ScheduleBatch(t.Context(), tx, tasks)
			var exists *schedule.ExistsError
			if !errors.As(err, &exists) || !slices.Equal(exists.IDs, []string{tasks[0].ID}) {
				t.Errorf("got error %v, want a schedule.ExistsError for %s", err, tasks[0].ID)
			}
			suite.MustSucceed(t, tx.Rollback())
		}
	})
}

// In the two hours that local time cannot distinguish when daylight saving time ends, the
// database's clock and all documented statements are correct.
func TestClockWhenDaylightSavingEnds(t *testing.T) {
	t.Parallel()
	eachMySQL(t, func(t *testing.T, db businessDB) {
		migrated := newStore(t, db, nil, schedule.Config{})
		for name, ends := range map[string]time.Duration{"first hour": 30 * time.Minute, "second hour": -30 * time.Minute} {
			t.Run(name, func(t *testing.T) {
				local := inZone(t, db, time.Now().Add(ends))
				s, err := schedule.New(local.DB, nil, schedule.Config{})
				suite.MustSucceed(t, err)
				skew, _, err := s.ClockSkew(t.Context())
				if err != nil || skew.Abs() > time.Minute {
					t.Errorf("ClockSkew of a database on this machine = %v (error %v), want at most 1m", skew, err)
				}
				local.mustExec(t, "DELETE FROM rabbitdelay_tasks")
				local.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('plain', 'q', 1)")
				for what, at := range map[string]time.Time{"created_at": taskOf(t, migrated, "plain").CreatedAt, "updated_at": taskOf(t, migrated, "plain").UpdatedAt} {
					if time.Since(at).Abs() > time.Minute {
						t.Errorf("%s of a row that plain SQL inserted is off by %v, want at most 1m", what, time.Since(at))
					}
				}
				documentedTaskStatements(t, local)
			})
		}
	})
}

// inZone opens the database in a separate time zone, whose clock is set back by an hour at the
// given time.
func inZone(t *testing.T, db businessDB, at time.Time) businessDB {
	t.Helper()
	zone := fmt.Sprintf("rabbitdelay/%d/%d", os.Getpid(), databaseNumber.Add(1))
	res, err := db.ExecContext(t.Context(), "INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
	suite.MustSucceed(t, err)
	id, err := res.LastInsertId()
	suite.MustSucceed(t, err)
	t.Cleanup(func() {
		for _, table := range []string{"time_zone_transition", "time_zone_transition_type", "time_zone_name", "time_zone"} {
			if _, err := db.Exec("DELETE FROM mysql."+table+" WHERE Time_zone_id = ?", id); err != nil {
				t.Errorf("%s: %v", table, err)
			}
		}
	})
	db.mustExec(t, "INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES (?, ?)", zone, id)
	db.mustExec(t,
		"INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation) "+
			"VALUES (?, 0, 7200, 1, 'S'), (?, 1, 3600, 0, 'W')",
		id, id)
	db.mustExec(t, "INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id) VALUES (?, 1, 0), (?, ?, 1)", id, id, at.Unix())

	cfg, err := mysql.ParseDSN(db.dsn)
	suite.MustSucceed(t, err)
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	cfg.Params["time_zone"] = "'" + zone + "'"
	dsn := cfg.FormatDSN()
	opened, err := sql.Open("mysql", dsn)
	suite.MustSucceed(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return businessDB{DB: opened, dialect: db.dialect, dsn: dsn}
}
