package doctor

import (
	"path"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// checkSettings looks for what shows of a node's own settings, which is the names of
// its configuration files: dead_letter_worker_publisher_confirm_timeout can stand
// in advanced.config only. What stands in the files cannot be seen.
func (x *examination) checkSettings() {
	if !slices.ContainsFunc(x.cfg.Want.Queues, atLeastOnce) {
		return
	}
	var without []string
	for _, n := range x.snap.Nodes {
		if n.Running && n.FilesKnown && !slices.ContainsFunc(n.ConfigFiles, isAdvanced) {
			without = append(without, n.Name)
		}
	}
	if len(without) > 0 {
		x.notef("no advanced.config on %s, so dead_letter_worker_publisher_confirm_timeout is probably at its 3 minutes: messages that fall due around a restart may be that late, and none is lost; docs/advanced.config has the setting, docs/rabbitmq.conf what else suits delays and cannot be seen from here",
			list(without))
	}
}

func atLeastOnce(q topology.Queue) bool { return q.DeadLetter != nil && q.DeadLetter.AtLeastOnce }

// isAdvanced recognizes advanced.config, by its usual name or one that was chosen
// (RABBITMQ_ADVANCED_CONFIG_FILE).
func isAdvanced(file string) bool { return strings.HasPrefix(path.Base(file), "advanced") }
