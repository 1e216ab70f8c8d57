package doctor

import (
	"fmt"
	"regexp"
	"strings"
)

// shown is how many names a sentence lists; Finding.Objects has all.
const shown = 3

func texts[T any](all []T, text func(T) string) []string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = text(v)
	}
	return out
}

// list is "a, b, c and 4 more".
func list(names []string) string {
	if len(names) <= shown+1 {
		if n := len(names); n > 1 {
			return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
		}
		return strings.Join(names, "")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// counted is "1 queue" or "12,345 queues".
func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(int64(n)) + " " + many
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// ctl is a rabbitmqctl command for the virtual host, its arguments quoted for a shell where they need it.
func (x *examination) ctl(command string, args ...string) string {
	all := []string{"rabbitmqctl", "-p", shellQuote(x.cfg.Vhost), command}
	for _, a := range args {
		all = append(all, shellQuote(a))
	}
	return strings.Join(all, " ")
}

func (x *examination) run(command string) string {
	if x.cfg.File == "" {
		return "rabbitdelay " + command
	}
	return "rabbitdelay " + command + " -f " + shellQuote(x.cfg.File)
}

// destroy is the command that deletes layouts, or single queues of one. It refuses while messages are in them.
func (x *examination) destroy(names []string) string {
	return x.run("destroy") + " --layout " + shellQuote(strings.Join(names, ","))
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=@,+-]+$`)

func shellQuote(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
