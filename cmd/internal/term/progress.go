package term

import (
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress is a progress bar on a terminal, and nothing elsewhere.
type Progress struct{ bar *progressbar.ProgressBar }

// Progress draws nothing without a total.
func (t *Terminal) Progress(total int, what string) Progress {
	if t.Quiet || !Is(t.Stderr) || total < 1 {
		return Progress{}
	}
	return Progress{progressbar.NewOptions(total,
		progressbar.OptionSetWriter(t.Stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "#", SaucerPadding: ".", BarStart: "[", BarEnd: "]"}),
	)}
}

// Add moves the bar on.
func (p Progress) Add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n) // drawing only
	}
}

// Set moves the bar to n of the total, with another description.
func (p Progress) Set(n int, what string) {
	if p.bar != nil {
		p.bar.Describe(what)
		_ = p.bar.Set(n)
	}
}

// Clear takes the bar off the screen.
func (p Progress) Clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}
