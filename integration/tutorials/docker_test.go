package tutorials

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// The image is built without its first stage, whose base image is in a registry. Instead, the program is compiled on
// this machine with the same command. Docker runs all other commands as on the page.
func TestDocker(t *testing.T) {
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
	image := "rabbitdelay/rabbitmq:" + broker.Newest()
	if err := exec.CommandContext(t.Context(), "docker", "image", "inspect", image).Run(); err != nil {
		t.Skipf("skipped: it needs Docker with the image %s (make images)", image)
	}
	suffix := fmt.Sprintf("-%d", time.Now().UnixNano())
	addresses := map[string]string{shopAddress: freeAddress(t), "rabbitmq:4": image}
	for _, name := range []string{"shop-rabbit", "shop-app", "shop-net", "shop-data", "shop-image"} {
		addresses[name] = name + suffix
	}
	t.Cleanup(func() { // removes what a failed test has left; errors mean that it does not exist
		for _, c := range [][]string{
			{"rm", "-f", "-v", addresses["shop-app"], addresses["shop-rabbit"]},
			{"volume", "rm", "-f", addresses["shop-data"]},
			{"network", "rm", addresses["shop-net"]},
			{"rmi", "-f", addresses["shop-image"]},
		} {
			_ = exec.Command("docker", c...).Run()
		}
	})
	follow(t, tutorial{
		page:       "tutorials/docker.md",
		programs:   "docker",
		real:       addresses,
		begin:      "start/step4",
		containers: []string{addresses["shop-app"], addresses["shop-rabbit"]},
		standIns:   []standIn{{"docker build ", (*session).buildImage}},
	})
}

// buildImage builds the last stage of the reader's Dockerfile, and replaces the earlier stage with a build on this
// machine.
func (s *session) buildImage() {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "Dockerfile"))
	suite.MustSucceed(s.t, err)
	first, last, ok := strings.Cut(string(text), "\nFROM scratch\n")
	if !ok {
		s.t.Fatalf("got the Dockerfile\n%s\nwant a stage FROM scratch in it", text)
	}
	context := filepath.Join(s.home, "context")
	suite.MustSucceed(s.t, os.MkdirAll(filepath.Join(context, "out", "data"), 0o755))
	for line := range strings.Lines(first) {
		if command, is := strings.CutPrefix(line, "RUN "); is && strings.Contains(command, "go build") {
			command = strings.ReplaceAll(strings.TrimSpace(command), "/out/", context+"/out/")
			if out := s.run(command); len(out) > 0 {
				s.t.Fatalf("%s printed\n%s, want no output", command, strings.Join(out, "\n"))
			}
		}
	}
	suite.MustSucceed(s.t, os.MkdirAll(filepath.Join(context, "etc", "ssl", "certs"), 0o755))
	certificates, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	suite.MustSucceed(s.t, err)
	suite.MustSucceed(s.t, os.WriteFile(filepath.Join(context, "etc", "ssl", "certs", "ca-certificates.crt"), certificates, 0o644))
	suite.MustSucceed(s.t, os.Rename(filepath.Join(s.dir, "shop.yaml"), filepath.Join(context, "shop.yaml")))
	last = "FROM scratch\n" + strings.ReplaceAll(last, "--from=build ", "")
	suite.MustSucceed(s.t, os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(last), 0o600))
	suite.Docker(s.t, "build", "-q", "-t", s.tut.real["shop-image"], context)
}
