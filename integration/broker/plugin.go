package broker

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// EnvPluginDir names the directory that contains the x-delayed-message plugin. Default: rabbitdelay/plugins in the
// user's cache directory.
const EnvPluginDir = "RABBITDELAY_PLUGIN_DIR"

const pluginName = "rabbitmq_delayed_message_exchange"

// PluginAvailable returns the path of the x-delayed-message plugin for a release line of RabbitMQ such as "4.0". If
// there is none, it returns "" and the reason. It looks for <folder>/<line>/rabbitmq_delayed_message_exchange*.ez,
// where <folder> is the value of RABBITDELAY_PLUGIN_DIR, or rabbitdelay/plugins in the user's cache directory.
func PluginAvailable(version string) (path, reason string) {
	folder := os.Getenv(EnvPluginDir)
	if folder == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Sprintf("plugin not found: %v; set %s", err, EnvPluginDir)
		}
		folder = filepath.Join(cache, "rabbitdelay", "plugins")
	}
	folder = filepath.Join(folder, cmp.Or(line(version), "unknown"))
	// The pattern is always valid, unless the directory's name contains pattern characters.
	found, err := filepath.Glob(filepath.Join(folder, pluginName+"*.ez"))
	if err != nil || len(found) == 0 {
		return "", "plugin not found in " + folder
	}
	return slices.Max(found), ""
}
