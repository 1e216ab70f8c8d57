package taskview

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// CheckCursor returns an error for a string that is not a position in a list of tasks.
func CheckCursor(c schedule.Cursor) error {
	_, err := rows.ParsePlace(string(c))
	return err
}

// CheckBulkCursor returns an error for a string that is not a position of a bulk change.
func CheckBulkCursor(c schedule.Cursor) error {
	_, err := rows.ParseBulkPlace(string(c))
	return err
}
