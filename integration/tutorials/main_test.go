package tutorials

import (
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) {
	code := suite.Main(m, tier.Plan{Test: []string{"TestPagesShowPrograms", "TestStart", "TestVirtualTime"}})
	if err := database.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing databases:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// brokerAddress returns the host and port of the shared broker. It deletes all queues first, because those of an
// earlier tutorial would change the output of the programs.
func brokerAddress(t *testing.T) string {
	t.Helper()
	b := broker.Shared(t, broker.Options{})
	u, err := url.Parse(b.URL())
	suite.MustSucceed(t, err)
	if b.Source() != broker.Environment {
		for _, args := range [][]string{
			{"delete_vhost", "/"}, {"add_vhost", "/"}, {"set_permissions", "-p", "/", u.User.Username(), ".*", ".*", ".*"},
		} {
			_, err := b.Ctl(t.Context(), args...)
			suite.MustSucceed(t, err)
		}
	}
	return u.Host
}

// usual replaces the tutorials' Docker and Go commands that need a registry or a published version.
var usual = []standIn{
	{"docker ", func(*session) {}},
	{"until docker ", func(*session) {}},
	{"go get ", (*session).require},
	{"go mod tidy", func(*session) {}},
	{"go install ", (*session).install},
	{"pip install ", func(*session) {}},
}

// programs maps each tutorial to the folder of its program.
var programs = map[string]string{
	"start.md":                  "start",
	"tutorials/docker.md":       "docker",
	"tutorials/pgx.md":          "pgx",
	"tutorials/python.md":       "python",
	"tutorials/virtual-time.md": "start/step4",
}

// The code in the tutorials is the same as in programs that are compiled and checked like all other code.
func TestPagesShowPrograms(t *testing.T) {
	for name, folder := range programs {
		readPage(t, name).checkCode(t, folder)
	}
}

func TestStart(t *testing.T) {
	follow(t, tutorial{
		page:     "start.md",
		programs: programs["start.md"],
		real:     map[string]string{"127.0.0.1:5672": brokerAddress(t), shopAddress: freeAddress(t)},
		standIns: usual,
		serving:  []string{"go run .", "go run ./consume"},
		waits: map[string]func(*session){
			// The page says that the message is in RabbitMQ at this point.
			"curl -X POST http://127.0.0.1:8080/orders/44/payment": func(s *session) { s.awaitSent("expire-44") },
		},
	})
}

func TestVirtualTime(t *testing.T) {
	follow(t, tutorial{
		page:     "tutorials/virtual-time.md",
		programs: "start/step4",
		begin:    "start/step4",
		standIns: usual,
	})
}

func TestPgx(t *testing.T) {
	follow(t, tutorial{
		page:     "tutorials/pgx.md",
		programs: "pgx",
		real: map[string]string{
			"127.0.0.1:5672": brokerAddress(t),
			shopAddress:      freeAddress(t),
			"postgres://postgres:secret@127.0.0.1:5432/postgres": database.Shared(t, database.PostgreSQL).URL(),
		},
		begin:    "start/step4",
		tools:    map[string]string{"rabbitdelay": rabbitdelay(t)},
		standIns: usual,
		serving:  []string{"go run ."},
	})
}

// python and pika are the paths of Debian's Python and its pika. PATH may contain another Python before it.
const python, pika = "/usr/bin/python3", "/usr/lib/python3/dist-packages/pika"

func TestPython(t *testing.T) {
	for _, path := range []string{python, pika} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("skipped: %v (apt-get install python3-pika)", err)
		}
	}
	follow(t, tutorial{
		page:     "tutorials/python.md",
		programs: "python",
		real:     map[string]string{"127.0.0.1:5672": brokerAddress(t)},
		tools:    map[string]string{"rabbitdelay": rabbitdelay(t), "python3": python},
		standIns: usual,
		serving:  []string{"python3 receive.py"},
	})
}
