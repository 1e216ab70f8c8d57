package messages_test

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m) }
