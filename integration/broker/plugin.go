package broker

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// EnvPluginDir names the folder in which the x-delayed-message plugin is looked
// for. Default: rabbitdelay/plugins in the user's cache folder.
const EnvPluginDir = "RABBITDELAY_PLUGIN_DIR"

const pluginName = "rabbitmq_delayed_message_exchange"

// PluginAvailable returns the file of the x-delayed-message plugin for a
// release line of RabbitMQ such as "4.0", or "" and the reason why there is
// none. The file is <folder>/<line>/rabbitmq_delayed_message_exchange*.ez,
// where the folder is what RABBITDELAY_PLUGIN_DIR says, or rabbitdelay/plugins
// in the user's cache folder.
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
	// A pattern error is not possible unless the folder's name is a pattern.
	found, err := filepath.Glob(filepath.Join(folder, pluginName+"*.ez"))
	if err != nil || len(found) == 0 {
		return "", "plugin not found in " + folder
	}
	return slices.Max(found), ""
}
