package schedule

import (
	"strings"
	"testing"
	"time"
)

func TestParseInstant(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	check(t, err)
	now := time.Date(2026, 3, 28, 20, 30, 15, 0, time.UTC) // 21:30:15 in Berlin, the evening before daylight saving time starts
	for in, want := range map[string]string{
		"2026-12-24T08:00:00Z":                 "2026-12-24T08:00:00Z",
		"2026-12-24T08:00:00+02:00":            "2026-12-24T06:00:00Z",
		"2026-12-24 08:00 Europe/Berlin":       "2026-12-24T07:00:00Z",
		"2026-12-24 08:00:30":                  "2026-12-24T08:00:30Z",
		"tomorrow 08:00 Europe/Berlin":         "2026-03-29T06:00:00Z", // daylight saving time has started by then
		"today 23:00 Europe/Berlin":            "2026-03-28T22:00:00Z",
		"tomorrow 08:00":                       "2026-03-29T08:00:00Z",
		"21:31 Europe/Berlin":                  "2026-03-28T20:31:00Z",
		"21:30 Europe/Berlin":                  "2026-03-29T19:30:00Z",
		"02:30 Europe/Berlin":                  "02:30:00 does not exist in Europe/Berlin on 2026-03-29",
		"2026-03-29 02:30 Europe/Berlin":       "02:30:00 does not exist",
		"2026-10-25 02:30 Europe/Berlin":       "2026-10-25T00:30:00Z", // the first of two
		"2026-04-05 01:45 Australia/Lord_Howe": "2026-04-04T14:45:00Z", // the clocks are set back by 30 minutes
		"2026-04-05 01:15 Australia/Lord_Howe": "2026-04-04T14:15:00Z",
		"2026-04-05 02:15 Australia/Lord_Howe": "2026-04-04T15:45:00Z",
		"2026-11-01 01:30 America/New_York":    "2026-11-01T05:30:00Z",
		" +90m ":                               "2026-03-28T22:00:15Z",
		"-1h":                                  "2026-03-28T19:30:15Z",
		"90m":                                  "2026-03-28T22:00:15Z",
		"7d":                                   "2026-04-04T20:30:15Z",
		"-1d":                                  "2026-03-27T20:30:15Z",
		"now":                                  "2026-03-28T20:30:15Z",
		"+-1h":                                 "as a time",
		"0001-01-01T00:00:00Z":                 "a variable that was never set",
		"tomorrow":                             "as a time",
		"tomorrow 25:00":                       "as a time",
		"tomorrow 08:00 Berlin":                `"Berlin" is not a time zone`,
		"08:00 Local":                          "is not a time zone",
		"+soon":                                "as a time",
		"":                                     "as a time",
		"2026-02-30 08:00":                     "as a time",
	} {
		got, err := ParseInstant(in, now)
		text := got.UTC().Format(time.RFC3339)
		if err != nil {
			text = err.Error()
		}
		if text != want && (err == nil || !strings.Contains(text, want)) {
			t.Errorf("ParseInstant(%q): got %s, want %s", in, text, want)
		}
	}
	if got, _ := ParseInstant("tomorrow 08:00", now.In(berlin)); !got.Equal(time.Date(2026, 3, 29, 6, 0, 0, 0, time.UTC)) {
		t.Errorf("ParseInstant in the local time zone: got %v, want %v", got, time.Date(2026, 3, 29, 6, 0, 0, 0, time.UTC))
	}
}
