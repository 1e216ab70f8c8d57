package change

import (
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// DescribeFilter describes a filter in words. It includes header values only if values is true, because only operators
// may see them.
func DescribeFilter(f schedule.Filter, values bool) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("queue", f.Queue)
	add("exchange", f.Exchange)
	add("status", string(f.Status))
	add("id-prefix", f.IDPrefix)
	add("unique-key", f.UniqueKey)
	add("id", strings.Join(f.IDs, " or "))
	add("tag", f.Tag)
	add("header", DescribeHeader(f.Header, f.HeaderValue, values))
	add("error", f.Error)
	add("error-like", f.ErrorLike)
	if !f.DueFrom.IsZero() {
		add("due-from", shown.Instant(f.DueFrom))
	}
	if !f.DueTo.IsZero() {
		add("due-to", shown.Instant(f.DueTo))
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, " ")
}

// DescribeHeader describes a condition on a header. It includes the value only if values is true.
func DescribeHeader(name, value string, values bool) string {
	if name == "" || !values {
		return name
	}
	return name + "=" + strconv.Quote(value)
}
