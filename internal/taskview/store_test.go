package taskview

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// The package converts every condition of a schedule.Filter to its own filter.
func TestEveryConditionIsConverted(t *testing.T) {
	forList := []string{"Sort", "After", "Limit", "WithoutBody", "Unheld"}
	fields := reflect.TypeFor[schedule.Filter]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if slices.Contains(forList, name) {
			continue
		}
		var f schedule.Filter
		switch x := reflect.ValueOf(&f).Elem().Field(i).Addr().Interface().(type) {
		case *string:
			*x = "x"
		case *schedule.Status:
			*x = schedule.StatusFailed
		case *time.Time:
			*x = time.Unix(1, 0)
		case *[]string:
			*x = []string{"x"}
		default:
			t.Fatalf("field %s: got type %T, want one of the types for which this test has a value", name, x)
		}
		if reflect.DeepEqual(conditions(f), rows.Filter{}) {
			t.Errorf("field %s: got an empty filter, want its condition", name)
		}
	}
}
