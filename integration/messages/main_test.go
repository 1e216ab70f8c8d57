package messages_test

import (
	"os"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m, tiers)) }

// make test runs the cases in which messages were lost or handled twice most often during development.
var tiers = tier.Plan{Test: []string{
	"TestSendsSurviveLostConnections",
	"TestBatchSurvivesALostConnection",
	"TestCutBeforeTheConfirm",
	"TestCutBeforeTheAcknowledgement",
	"TestMissingDelayQueueIsDeclaredAgain",
	"TestDeletedDestinationIsDeclaredAgain",
	"TestDrain",
	"TestRetriesThenDeadLetter",
	"TestRejectAndRetryIn",
	"TestConsumeRefusesBadOptions",
	"TestFirstUseByManyClientsAtTheSameTime/" + tier.Newest,
	"TestRequeueLeavesTheRest/" + tier.Newest,
	"TestDiscardKeepsEverything/" + tier.Newest,
	"TestUnreadableMessages/" + tier.Newest,
}}
