package suite

import (
	"time"
)

// Patience bounds every wait for something that must come. It says nothing
// about how fast it should.
const Patience = 90 * time.Second
