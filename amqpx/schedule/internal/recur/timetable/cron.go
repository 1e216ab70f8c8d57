package timetable

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"
)

// searchYears is how many years ahead the next match of an expression is searched for. 29 February is at most 8 years
// away, and 29 February on a given weekday at most 40.
const searchYears = 40

var parser = cron.MustNewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow |
	cron.Descriptor | cron.Extended).WithMaxSearchYears(searchYears)

const words = "@hourly, @daily, @weekly, @monthly, @yearly"

// parse parses an expression. The caller passes wall clock times to the result as if they were in
// UTC, so that the library never handles time zones.
func parse(expression string) (*cron.SpecSchedule, error) {
	fields := strings.Fields(expression)
	if len(fields) == 5 {
		fields = append([]string{"0"}, fields...)
	}
	switch {
	case strings.HasPrefix(expression, "@every"):
		return nil, errors.New("@every is an interval; expected a cron expression")
	case strings.Contains(expression, "TZ="):
		return nil, errors.New("the expression contains a time zone; expected the time zone as a separate setting")
	case len(expression) > cron.MaxSpecLength:
		return nil, fmt.Errorf("%d bytes, expected at most %d", len(expression), cron.MaxSpecLength)
	case strings.HasPrefix(expression, "@"):
	case len(fields) != len(places):
		return nil, fmt.Errorf("expected 5 fields (minute hour day month weekday), 6 with seconds in front, or one of %s; got %d", words, len(fields))
	}
	if len(fields) == len(places) {
		if err := unnamed(fields[3], fields[5]); err != nil {
			return nil, err
		}
	}
	// Convert the expression to lower case, because the library interprets the H of THU as a hash.
	s, err := parser.Parse(strings.ToLower(strings.Join(fields, " ")))
	if err != nil {
		return nil, explain(fields)
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok {
		return nil, errors.New("expected a cron expression")
	}
	if len(fields) == len(places) {
		spec.DowOrDom = !starred(fields[3]) && !starred(fields[5])
		const star = 1 << 63 // the library's flag for a star anywhere in a field, which starred replaces
		spec.Dom, spec.Dow = spec.Dom&^star, spec.Dow&^star
	}
	if spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("no calendar day matches")
	}
	return spec, nil
}

// unnamed rejects numeric weekdays in expressions that use Quartz's syntax in either day field. Quartz counts Sunday as
// 1 and crontab as 0, so the number could mean a different day from the intended one.
func unnamed(dom, dow string) error {
	number := ""
	quartz := strings.ContainsAny(dom, "?lLwW#") || strings.ContainsAny(dow, "?#")
	for part := range strings.SplitSeq(dow, ",") {
		day, _, _ := strings.Cut(part, "#")
		day, _, _ = strings.Cut(day, "/")
		if strings.ContainsAny(day, "0123456789") {
			number = part
			quartz = quartz || strings.ContainsAny(day, "lLwW")
		}
	}
	if !quartz || number == "" {
		return nil
	}
	return fmt.Errorf("weekday %q: expected a weekday name with ?, L, W or #, such as fri, mon-fri or fri#L for the last Friday: these characters are Quartz syntax, where Sunday is 1, while in crontab it is 0", number)
}

// starred reports whether a day field begins with a star or a question mark. If at least one of the two day fields (day
// of the month and weekday) does, a day must match both fields; if neither does, a day must match at least one of them.
// As in Vixie's cron, only the first character decides.
func starred(field string) bool {
	return strings.HasPrefix(field, "*") || strings.HasPrefix(field, "?")
}

// places describes the fields of an expression in order.
var places = []struct{ name, first, values string }{
	{"second", "0", "0 to 59"},
	{"minute", "0", "0 to 59"},
	{"hour", "0", "0 to 23"},
	{"day of month", "1", "1 to 31, L, L-3, LW, 15W"},
	{"month", "1", "1 to 12 or jan to dec"},
	{"weekday", "0", "0 to 7 (Sunday is 0 and 7) or sun to sat, mon#2, fri#L"},
}

// explain returns an error that names the first part of an expression that is invalid by itself. It replaces the
// library's own errors, which name Go functions, and options that users of this package cannot set.
func explain(fields []string) error {
	for place, field := range fields {
		for part := range strings.SplitSeq(field, ",") {
			if len(fields) == len(places) && !validAlone(place, part) {
				return reason(place, part)
			}
		}
	}
	return fmt.Errorf("%q is unknown; expected %s, or 5 fields (minute hour day month weekday), 6 with seconds in front", strings.Join(fields, " "), words)
}

// validAlone reports whether a part is valid by itself in the field at place.
func validAlone(place int, part string) bool {
	fields := strings.Fields(strings.Repeat("* ", len(places)))
	fields[place] = strings.ToLower(part)
	_, err := parser.Parse(strings.Join(fields, " "))
	return part == "" || err == nil // the library ignores empty parts
}

func reason(place int, part string) error {
	p := places[place]
	span, step, stepped := strings.Cut(part, "/")
	if n, err := strconv.Atoi(step); stepped && err == nil && n > 1 && !strings.ContainsAny(span, "lLwW#") && validAlone(place, span) {
		first, _, _ := strings.Cut(span, "-")
		if starred(span) {
			first = p.first
		}
		return fmt.Errorf("%s %q: a step of %d is not shorter than the range, so only the first %s would match; write %s for that, or use an interval (every)", p.name, part, n, p.name, first)
	}
	if day := strings.TrimRight(part, "lL"); p.name == "weekday" && day != part && day != "" && validAlone(place, day) {
		return fmt.Errorf("%s %q: the last weekday of the month is written with #; write %s#L", p.name, part, day)
	}
	return fmt.Errorf("%s %q: expected %s, *, a range such as 2-5 or a step such as */5", p.name, part, p.values)
}
