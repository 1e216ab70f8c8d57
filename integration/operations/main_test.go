package operations_test

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }
